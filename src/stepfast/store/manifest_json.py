"""The manifest's fields as strict JSON, both ways: what a reader refuses is not written.

Not here: what the fields are for (`manifest`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import xxhash

from stepfast.core.errors import Damaged, FormatTooNew, StateNotStorable
from stepfast.core.words import DTYPE_BYTES, Leaf, StoredFile
from stepfast.files import strict_json
from stepfast.files.strict import is_name
from stepfast.store.names import MANIFEST, is_leaf_name, leaf_identity
from stepfast.store.safetensors import is_count, is_shape, size_of

FORMAT = 1
"""Number of the format that this program writes, and the newest it reads."""

MAX_BYTES = 32 << 20
MAX_FILES = 4096
MAX_LEAVES = 100_000

_DIGEST = re.compile(r"[0-9a-f]{32}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|\+00:00)", re.ASCII)


def is_digest(value: object) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def is_sha256(value: object) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _is_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _is_parent(value: object) -> bool:
    return value is None or (
        isinstance(value, dict)
        and value.keys() == {"step", "manifest_sha256"}
        and is_count(value["step"])
        and is_sha256(value["manifest_sha256"])
    )


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "run_id": (is_name, "a name"),
    "step": (is_count, "a number of steps"),
    "epoch": (is_count, "a number of epochs"),
    "batch": (is_count, "a number of batches"),
    "revision": (is_count, "a number"),
    "reasons": (lambda value: isinstance(value, list) and all(map(_is_text, value)), "a list of texts"),
    "name": (lambda value: value is None or is_name(value), "a name or null"),
    "finished": (_is_text_or_none, "a text or null"),
    "created": (lambda value: _is_text(value) and _TIME.fullmatch(value) is not None, "a time in UTC"),
    "parent": (_is_parent, "step and manifest_sha256, or null"),
    "world_size": (lambda value: is_count(value) and value >= 1, "a number from 1"),
    "files": (
        lambda value: isinstance(value, list) and len(value) <= MAX_FILES,
        f"a list of at most {MAX_FILES}",
    ),
    "aliases": (_is_texts, "an object of texts"),
    "k0_s": (_is_seconds, "seconds"),
    "k1_s": (lambda value: value is None or _is_seconds(value), "seconds or null"),
    "versions": (_is_texts, "an object of texts"),
    "hyperparameters": (lambda value: True, "anything"),
    "git_commit": (_is_text_or_none, "a text or null"),
    "determinism": (lambda value: isinstance(value, dict), "an object"),
}


def encode(fields: dict[str, Any]) -> bytes:
    """The file's content from the fields of a `Manifest`; see `Manifest.to_json`."""
    value = _value(fields)
    value["files"] = [_file_json(stored) for stored in fields["files"]]
    try:
        value["digest"] = _digest(value)
        data = strict_json.dumps(value) + b"\n"
        decode(data)
    except (ValueError, RecursionError, Damaged, FormatTooNew) as error:
        raise _not_writable(fields, error) from error
    return data


def encode_file(stored: StoredFile) -> bytes:
    """One entry of `files`, in the compact form, for `splice`."""
    return strict_json.dumps(_file_json(stored), indent=None)


def splice(fields: dict[str, Any], files: Iterable[bytes]) -> bytes:
    """As `encode`, in the compact form, with entries of `files` that were encoded and checked before."""
    value = _value(fields)
    del value["files"]
    try:
        # Names are sorted in the form that is digested, so the files have their place between two halves.
        before, after = (
            strict_json.dumps({name: item for name, item in value.items() if (name < "files") is first}, indent=None)
            for first in (True, False)
        )
    except (ValueError, RecursionError) as error:
        raise _not_writable(fields, error) from error
    data = b'%b,"files":[%b],%b' % (before[:-1], b",".join(files), after[1:])
    return b'%b,"digest":"%b"}' % (data[:-1], xxhash.xxh3_128_hexdigest(data).encode())


def _value(fields: dict[str, Any]) -> dict[str, Any]:
    value = {name: fields[name] for name in (*_FIELDS, "format")}
    value = {name: item for name, item in fields["unknown"].items() if name not in value} | value
    value["reasons"] = list(fields["reasons"])
    return value


def _not_writable(fields: dict[str, Any], error: Exception) -> StateNotStorable:
    return StateNotStorable(f"the manifest of step {fields['step']} cannot be written: {error}")


def decode(data: bytes) -> dict[str, Any]:
    """The fields of a `Manifest`; see `Manifest.from_json`."""
    try:
        value = strict_json.loads(data, max_bytes=MAX_BYTES)
    except ValueError as error:
        raise Damaged(f"the manifest is not strict JSON: {error}") from error
    check_format(value, "the manifest")
    digest = value.pop("digest", None)
    if not is_digest(digest) or digest != _digest(value):
        raise Damaged("the manifest is not what its digest says")
    for name, (fits, what) in _FIELDS.items():
        if name not in value:
            _refuse(f"the field {name} is missing")
        if not fits(value[name]):
            _refuse(f"{name} is not {what}")
    fields = {name: value.pop(name) for name in (*_FIELDS, "format")}
    fields["reasons"] = tuple(fields["reasons"])
    fields["files"] = tuple(_file(entry) for entry in fields["files"])
    fields["unknown"] = value
    _check_names(fields["files"], fields["aliases"])
    return fields


def check_format(value: object, what: str) -> None:
    """The number of the format is read before all else."""
    if not isinstance(value, dict):
        raise Damaged(f"{what} is not a JSON object")
    number = value.get("format")
    if type(number) is not int or number < 1:
        raise Damaged(f"{what} has no format number")
    if number > FORMAT:
        raise FormatTooNew(
            f"{what} has format {number}, this program reads up to {FORMAT}",
            hint="update stepfast to open it",
        )


def _digest(value: dict[str, Any]) -> str:
    """Over the meaning, not the layout: another program may indent it anew."""
    return xxhash.xxh3_128_hexdigest(strict_json.dumps(value, indent=None))


def _file_json(stored: StoredFile) -> dict[str, Any]:
    value: dict[str, Any] = {"name": stored.name, "size": stored.size, "digest": stored.digest}
    if stored.leaves:
        value["leaves"] = [_leaf_json(leaf) for leaf in stored.leaves]
    return value


def _leaf_json(leaf: Leaf) -> dict[str, Any]:
    value = {
        "name": leaf.name,
        "key": leaf.key,
        "dtype": leaf.dtype,
        "shape": list(leaf.shape),
        "offset": leaf.offset,
        "size": leaf.size,
        "digest": leaf.digest,
    }
    if leaf.strides is not None:
        value["strides"] = list(leaf.strides)
    return value


def _file(entry: Any) -> StoredFile:
    name, size, digest = (_member(entry, field, "files") for field in ("name", "size", "digest"))
    leaves = entry.get("leaves", [])
    if not is_name(name) or name == MANIFEST:
        _refuse(f"{ascii(name)[:200]} cannot be the name of a file")
    if not is_count(size) or not (digest == "" or is_digest(digest)) or not isinstance(leaves, list):
        _refuse(f"file {name}: size, digest or leaves are none")
    if len(leaves) > MAX_LEAVES:
        _refuse(f"file {name} has more than {MAX_LEAVES} leaves")
    stored = StoredFile(name=name, size=size, digest=digest, leaves=tuple(_leaf(name, leaf) for leaf in leaves))
    end = 0
    for leaf in sorted(stored.leaves, key=lambda leaf: (leaf.offset, leaf.size)):
        if leaf.offset < end or leaf.offset + leaf.size > size:
            _refuse(f"file {name}: leaf {leaf.name} overlaps another or leaves the file")
        end = leaf.offset + leaf.size
    return stored


def _member(entry: Any, field: str, where: str) -> Any:
    if not isinstance(entry, dict):
        _refuse(f"an entry of {where} is not an object")
    return entry.get(field)


def _leaf(file_name: str, entry: Any) -> Leaf:
    name, key, dtype, shape, strides = (
        _member(entry, field, "leaves") for field in ("name", "key", "dtype", "shape", "strides")
    )
    offset, size, digest = (_member(entry, field, "leaves") for field in ("offset", "size", "digest"))
    if not is_leaf_name(name) or not is_leaf_name(key):
        _refuse(f"file {file_name}: {ascii(name)[:200]} or its key cannot be the name of a leaf")
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        _refuse(f"leaf {name}: unknown dtype {ascii(dtype)[:40]}")
    if not is_shape(shape) or size_of(dtype, shape) != size or not is_count(offset) or not is_count(size):
        _refuse(f"leaf {name}: shape, offset and size do not fit")
    if strides is not None and not (
        isinstance(strides, list) and len(strides) == len(shape) and all(is_count(stride) for stride in strides)
    ):
        _refuse(f"leaf {name}: strides do not fit the shape")
    if not (digest == "" or is_digest(digest)):
        _refuse(f"leaf {name}: the digest is none")
    return Leaf(
        name=name,
        key=key,
        dtype=dtype,
        shape=tuple(shape),
        strides=None if strides is None else tuple(strides),
        offset=offset,
        size=size,
        digest=digest,
    )


def _check_names(files: tuple[StoredFile, ...], aliases: dict[str, str]) -> None:
    _unique((stored.name.lower() for stored in files), "file")
    for stored in files:
        _unique((leaf.key for leaf in stored.leaves), f"key in {stored.name}")
    names = [leaf.name for stored in files for leaf in stored.leaves]
    if len(names) > MAX_LEAVES or len(aliases) > MAX_LEAVES:
        _refuse(f"more than {MAX_LEAVES} leaves")
    _unique(map(leaf_identity, [*names, *aliases]), "leaf")
    known = set(names)
    for alias, target in aliases.items():
        if not is_leaf_name(alias):
            _refuse(f"the alias {ascii(alias)[:200]} cannot be the name of a leaf")
        if target not in known:
            _refuse(f"the alias {alias} stands for {ascii(target)[:200]}, which is no leaf")


def _unique(names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            _refuse(f"two of the same name: {what} {name}")
        seen.add(name)


def _refuse(why: str) -> NoReturn:
    raise Damaged(f"the manifest is not what the format says: {why}")
