"""The manifest as values and as bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.core.errors import Damaged, FormatTooNew, StateNotStorable
from stepfast.core.words import Leaf, StoredFile
from stepfast.store.manifest import Manifest, Parent
from tests.store import build

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text("abc", max_size=3), children, max_size=3),
    max_leaves=8,
)


def sample(**fields: Any) -> Manifest:
    return replace(build.manifest_of(500, build.files_of(500)), **fields)


@given(
    step=st.integers(0, 2**63 - 1),
    hyperparameters=JSON,
    finished=st.none() | st.text("abcäöü ", max_size=9),
    unknown=st.dictionaries(st.text("xyz", min_size=1, max_size=4), JSON, max_size=2),
    reasons=st.lists(st.text("abc"), max_size=3).map(tuple),
    k1_s=st.none() | st.floats(0, 1e9),
)
@settings(deadline=None)
def test_round_trip(**fields: Any) -> None:
    manifest = sample(parent=Parent(step=3, manifest_sha256="0" * 64), name="best", revision=1, **fields)
    data = manifest.to_json()
    assert Manifest.from_json(data) == manifest
    assert Manifest.from_json(data).to_json() == data


def test_a_draft_without_digests_goes_round_too() -> None:
    files = tuple(
        replace(
            stored,
            digest="",
            leaves=tuple(replace(leaf, digest="", strides=(1,) * len(leaf.shape)) for leaf in stored.leaves),
        )
        for stored, _ in build.files_of(1)
    )
    manifest = sample(files=files)
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.file("loop.json") == files[2]
    assert manifest.file("none") is None
    assert manifest.size_bytes == sum(stored.size for stored in files)


def test_another_layout_of_the_same_json_is_the_same_manifest() -> None:
    manifest = sample()
    assert Manifest.from_json(json.dumps(json.loads(manifest.to_json()), indent=None).encode()) == manifest


def test_every_flipped_bit_is_found() -> None:
    manifest = sample()
    data = manifest.to_json()
    for offset in range(0, len(data), 7):
        changed = bytearray(data)
        changed[offset] ^= 1 << offset % 8
        try:
            assert Manifest.from_json(bytes(changed)) == manifest  # white space only
        except (Damaged, FormatTooNew):
            continue
        assert bytes([data[offset]]).isspace()


def test_a_newer_format_is_named_with_both_numbers() -> None:
    with pytest.raises(FormatTooNew, match=r"format 7.* up to 1"):
        Manifest.from_json(b'{"format": 7, "all else": "may differ"}')


LEAF = Leaf(name="a", key="a", dtype="F32", shape=(2,), offset=4096, size=8)
FILE = StoredFile(name="model.safetensors", size=4104, leaves=(LEAF,))
WRONG: dict[str, dict[str, Any]] = {
    "run id": {"run_id": "../x"},
    "negative step": {"step": -1},
    "step is a truth value": {"step": True},
    "step is a float": {"step": 5.0},
    "created": {"created": "yesterday"},
    "k0": {"k0_s": -1.0},
    "k0 not finite": {"k0_s": float("inf")},
    "parent": {"parent": {"step": 1}},
    "parent digest": {"parent": {"step": 1, "manifest_sha256": "x"}},
    "world size": {"world_size": 0},
    "versions": {"versions": {"a": 1}},
    "hyperparameters": {"hyperparameters": {"a": object()}},
    "determinism": {"determinism": []},
    "reasons": {"reasons": (1,)},
    "tag": {"name": "a/b"},
    "file climbs": {"files": (replace(FILE, name="../x"),)},
    "file is hidden": {"files": (replace(FILE, name=".x"),)},
    "file is the manifest": {"files": (replace(FILE, name="manifest.json"),)},
    "file size": {"files": (replace(FILE, size=-1),)},
    "two files": {"files": (FILE, FILE)},
    "two files but for case": {"files": (replace(FILE, leaves=()), StoredFile(name="MODEL.safetensors", size=0))},
    "digest": {"files": (replace(FILE, digest="abc"),)},
    "leaf name": {"files": (replace(FILE, leaves=(replace(LEAF, name="a\nb"),)),)},
    "leaf name climbs": {"files": (replace(FILE, leaves=(replace(LEAF, name="a/../b"),)),)},
    "leaf dtype": {"files": (replace(FILE, leaves=(replace(LEAF, dtype="F33"),)),)},
    "leaf size": {"files": (replace(FILE, leaves=(replace(LEAF, size=4),)),)},
    "leaf beyond the file": {"files": (replace(FILE, leaves=(replace(LEAF, offset=4100),)),)},
    "leaf strides": {"files": (replace(FILE, leaves=(replace(LEAF, strides=(1, 1)),)),)},
    "negative stride": {"files": (replace(FILE, leaves=(replace(LEAF, strides=(-1,)),)),)},
    "leaves overlap": {"files": (replace(FILE, leaves=(LEAF, replace(LEAF, name="b", key="b", offset=4092))),)},
    "leaf twice": {"files": (replace(FILE, size=4112, leaves=(LEAF, replace(LEAF, key="b", offset=4104))),)},
    "key twice": {"files": (replace(FILE, size=4112, leaves=(LEAF, replace(LEAF, name="b", offset=4104))),)},
    "the same after NFC": {
        "files": (
            replace(
                FILE,
                size=4112,
                leaves=(replace(LEAF, name="\u00e9"), replace(LEAF, name="e\u0301", key="b", offset=4104)),
            ),
        )
    },
    "alias of nothing": {"aliases": {"x": "none"}, "files": (FILE,)},
    "alias is a leaf": {"aliases": {"a": "a"}, "files": (FILE,)},
    "chain of aliases": {"aliases": {"x": "y", "y": "a"}, "files": (FILE,)},
    "alias climbs": {"aliases": {"../x": "a"}, "files": (FILE,)},
    "too many files": {"files": tuple(StoredFile(name=f"f{number}", size=0) for number in range(4097))},
}  # fmt: skip


@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG.keys())
def test_what_no_reader_takes_is_not_written(fields: dict[str, Any]) -> None:
    with pytest.raises(StateNotStorable):
        sample(**{"aliases": {}, **fields}).to_json()


def test_the_smallest_manifest_is_written() -> None:
    sample(aliases={"x": "a"}, files=(FILE,)).to_json()
