"""verify: intact, damaged (named by file and leaf), nothing there."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepfast.store.reading import CheckpointReader
from stepfast.store.run_directory import RunDirectory
from tests.cli.conftest import Command


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.unlink()  # committed files are never opened for writing
    path.write_bytes(content)


def test_intact(stepfast: Command, finished: Path) -> None:
    answer = stepfast("verify", finished)
    assert answer.status == 0
    assert [line.split(",")[0] for line in answer.out.splitlines() if line.startswith("step")] == [
        "step 6: intact",
        "step 12: intact",
        "step 16: intact",
        "step 20: intact",
    ]
    assert stepfast("verify", f"{finished}@early").out.startswith("step 6: intact")


def test_as_json(stepfast: Command, finished: Path) -> None:
    found = stepfast("verify", finished, "--json").json
    assert set(found) == {"version", "run", "intact", "problems", "checkpoints"}
    assert found["intact"] is True
    names = {"step", "intact", "num_files", "size_bytes", "problems", "notes", "shared"}
    assert all(set(one) == names for one in found["checkpoints"])


def test_a_flipped_bit_is_named_by_file_and_leaf(stepfast: Command, finished: Path) -> None:
    manifest = CheckpointReader(RunDirectory.open(finished), 16).manifest
    leaf = next(leaf for stored in manifest.files for leaf in stored.leaves if leaf.name == "model.weight")
    flip(finished / "checkpoints/step-00000016/model.safetensors", leaf.offset + 3)
    answer = stepfast("verify", finished)
    assert answer.status == 1
    assert "step 16: DAMAGED" in answer.out
    assert "model.safetensors, leaf model.weight: is not what its digest says" in answer.out
    assert "step 20: intact" in answer.out
    assert "1 of 4 checkpoints damaged" in answer.err
    found = stepfast("verify", finished, "--json")
    assert found.status == 1
    problems = {one["step"]: one["problems"] for one in found.json["checkpoints"]}
    assert problems[16] == [
        {"file": "model.safetensors", "leaf": "model.weight", "what": "is not what its digest says"}
    ]
    assert stepfast("verify", f"{finished}@20").status == 0
    assert stepfast("verify", f"{finished}@16").status == 1


def test_a_missing_file(stepfast: Command, finished: Path) -> None:
    (finished / "checkpoints/step-00000012/loop.json").unlink()
    answer = stepfast("verify", f"{finished}@12")
    assert answer.status == 1
    assert "loop.json is missing" in answer.out


def test_a_damaged_manifest(stepfast: Command, finished: Path) -> None:
    flip(finished / "checkpoints/step-00000012/manifest.json", 40)
    answer = stepfast("verify", finished)
    assert answer.status == 1
    assert "step 12: DAMAGED" in answer.out
    assert "manifest.json" in answer.out


def test_a_manifest_that_was_swapped(stepfast: Command, finished: Path) -> None:
    """Valid by itself, but not the one that was committed."""
    path = finished / "checkpoints/step-00000012/manifest.json"
    content = path.read_bytes() + b"\n"
    path.unlink()
    path.write_bytes(content)
    answer = stepfast("verify", finished)
    assert answer.status == 1
    assert "manifest.json: is not the one the ledger says was committed" in answer.out


def test_a_tag_that_leads_nowhere(stepfast: Command, finished: Path) -> None:
    from stepfast.files.durable import delete_tree

    delete_tree(finished / "checkpoints/step-00000006")
    answer = stepfast("verify", finished)
    assert answer.status == 1
    assert "the tag early names step 6, which is not there" in answer.out


def test_files_that_do_not_belong_there_are_told(stepfast: Command, finished: Path) -> None:
    (finished / "checkpoints/step-00000012/surprise\x1b[2J").touch()
    answer = stepfast("verify", f"{finished}@12")
    assert answer.status == 0
    assert r"surprise\x1b[2J is not of this checkpoint" in answer.out


@pytest.mark.parametrize("which", ["", "@latest", "@5"])
def test_nothing_to_verify_is_a_failure(stepfast: Command, tmp_path: Path, which: str) -> None:
    RunDirectory.create(tmp_path / "empty", "x")
    answer = stepfast("verify", f"{tmp_path / 'empty'}{which}")
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.startswith("error: ")
