"""ls, status, log, show: of runs that are finished, empty, damaged, or not there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from stepfast.store.run_directory import RunDirectory
from tests.cli.conftest import Command

LOOKING = ("ls", "status", "log", "show", "verify", "doctor")


def test_ls_of_a_run(stepfast: Command, finished: Path) -> None:
    answer = stepfast("ls", finished)
    assert answer.status == 0
    header, *rows = answer.out.splitlines()
    assert header.split("  ")[0] == "step"
    assert [name in header for name in ("epoch", "next batch", "reason", "age", "size", "tag")] == [True] * 6
    cells = [row.split() for row in rows]
    assert [(row[0], row[1], row[2]) for row in cells] == [
        ("6", "1", "6"),
        ("12", "2", "2"),
        ("16", "2", "6"),
        ("20", "end", "–"),
    ]
    assert cells[0][-1] == "early"
    assert "4 checkpoints" in answer.err


def test_ls_of_a_run_as_json(stepfast: Command, finished: Path) -> None:
    found = stepfast("ls", finished, "--json").json
    assert set(found) == {"version", "run", "run_id", "checkpoints"}
    first, last = found["checkpoints"][0], found["checkpoints"][-1]
    names = {"step", "tags", "problem", "epoch", "batch", "reasons", "created", "age_s", "size_bytes", "finished"}
    assert set(first) == names
    assert (first["step"], first["epoch"], first["batch"], first["tags"]) == (6, 0, 6, ["early"])
    assert (last["step"], last["finished"]) == (20, "complete")
    assert first["size_bytes"] > 0


def test_ls_of_a_folder(stepfast: Command, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "deep" / "er")
    RunDirectory.create(tmp_path / "empty", "x")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "stepfast.json").write_text("{")
    (tmp_path / "link").symlink_to(finished)
    answer = stepfast("ls", tmp_path)
    assert answer.status == 0
    rows = {line.split()[0]: line for line in answer.out.splitlines()[1:]}
    assert set(rows) == {"broken", "deep/er", "empty", "run"}
    assert "damaged" in rows["broken"]
    assert "finished" in rows["run"]
    assert "stopped" in rows["empty"]
    found = stepfast("ls", tmp_path, "--json").json
    assert [Path(one["path"]).name for one in found["runs"]] == ["broken", "er", "empty", "run"]
    assert set(found["runs"][0]) == {"path", "step", "age_s", "num_checkpoints", "problem", "state"}


def test_ls_of_a_folder_without_runs(stepfast: Command, tmp_path: Path) -> None:
    answer = stepfast("ls", tmp_path)
    assert (answer.status, answer.out) == (0, "")
    assert answer.err == f"no run below {tmp_path}\n"


def test_ls_looks_here_when_nothing_is_said(stepfast: Command, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished.parent)
    assert "run " in stepfast("ls").out


def test_a_damaged_checkpoint_is_not_listed(stepfast: Command, finished: Path) -> None:
    (finished / "checkpoints/step-00000016/model.safetensors").unlink()
    answer = stepfast("ls", finished)
    assert [line.split()[0] for line in answer.out.splitlines()[1:]] == ["6", "12", "20"]
    assert "damaged, not listed: step 16" in answer.err
    assert "model.safetensors is missing" in answer.err
    by_step = {one["step"]: one["problem"] for one in stepfast("ls", finished, "--json").json["checkpoints"]}
    assert by_step[12] is None
    assert "is missing" in by_step[16]


def test_status_of_a_finished_run(stepfast: Command, finished: Path) -> None:
    answer = stepfast("status", finished)
    assert answer.status == 0
    assert "nobody; the run is finished (complete)" in answer.out
    assert "step 20, the end" in answer.out
    found = stepfast("status", finished, "--json").json
    assert found["training"] is False
    assert (found["durable_step"], found["finished_steps"], found["finished"]) == (20, 20, "complete")
    assert found["computed_again_after_a_crash"] == 0


def test_status_says_what_the_next_start_computes_again(stepfast: Command, finished: Path) -> None:
    shutil.rmtree(finished / "checkpoints/step-00000020")
    answer = stepfast("status", finished)
    assert "the next start computes again 4 finished steps" in answer.out
    assert stepfast("status", finished, "--json").json["computed_again_after_a_crash"] == 4


def test_log(stepfast: Command, finished: Path) -> None:
    answer = stepfast("log", finished)
    assert answer.status == 0
    lines = answer.out.splitlines()
    assert "start number 1: train.py, process" in lines[0]
    assert any("step 6 saved" in line and "tag early" in line for line in lines)
    assert "the trainer left: complete" in lines[-1]
    assert stepfast("log", finished, "-n", "1").out.splitlines() == lines[-1:]
    found = stepfast("log", finished, "--json").json
    assert set(found) == {"version", "run", "run_id", "num_damaged_lines", "events"}
    assert len(found["events"]) == len(lines)


def test_log_counts_damaged_lines_and_shows_no_control_letters(stepfast: Command, finished: Path) -> None:
    from stepfast.store import ledger

    with (finished / "ledger.jsonl").open("a") as file:
        file.write("damaged\n")
    ledger.append(finished / "ledger.jsonl", {"event": "opened", "script": "\x1b[31mred\u202egnp\n", "time": 3})
    ledger.append(finished / "ledger.jsonl", {"event": "commit", "step": "x", "reasons": 3, "k1_s": None})
    answer = stepfast("log", finished, "-n", "2")
    assert r"\x1b[31mred\u202egnp\n" in answer.out
    assert "\x1b" not in answer.out
    assert "step ? saved" in answer.out
    assert "1 line of the ledger damaged" in answer.err


def test_show(stepfast: Command, finished: Path) -> None:
    answer = stepfast("show", f"{finished}@early")
    assert answer.status == 0
    assert answer.out.splitlines()[0] == f"{finished}, step 6"
    for words in ("next batch", "model.weight", "optimizer.weight.exp_avg", "optimizer.lr", "F32", "1×8", "early"):
        assert words in answer.out
    assert stepfast("show", finished).out.splitlines()[0].endswith("step 20")
    assert stepfast("show", f"{finished}@latest").out == stepfast("show", finished).out


def test_show_as_json_is_the_manifest(stepfast: Command, finished: Path) -> None:
    found = stepfast("show", f"{finished}@6", "--json").json
    written = json.loads((finished / "checkpoints/step-00000006/manifest.json").read_text())
    assert found["manifest"] == written
    assert set(found) == {"version", "run", "path", "manifest_sha256", "tags", "settings", "manifest"}
    assert found["tags"] == ["early"]
    assert found["settings"]["data.batch_size"] == 10


def test_show_of_a_damaged_loop_still_shows_the_manifest(stepfast: Command, finished: Path) -> None:
    path = finished / "checkpoints/step-00000006/loop.json"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.unlink()
    path.write_bytes(content)
    answer = stepfast("show", f"{finished}@6")
    assert answer.status == 0
    assert "model.weight" in answer.out
    assert "loop.json" in answer.err
    assert "not what its digest says" in answer.err


def test_show_of_what_is_not_there(stepfast: Command, finished: Path) -> None:
    answer = stepfast("show", f"{finished}@7")
    assert answer.status == 1
    assert answer.err == (f"error: {finished} has no checkpoint 7\n\nhint: there is 6, 12, 16, 20; tags: early\n")


@pytest.mark.parametrize("command", [*LOOKING, "save", "stop"])
def test_no_run_there(stepfast: Command, command: str, tmp_path: Path) -> None:
    answer = stepfast(command, tmp_path / "nothing")
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.startswith(f"error: {tmp_path / 'nothing'} does not exist\n\nhint: ")


@pytest.mark.parametrize("command", [*LOOKING, "save", "stop"])
def test_a_file_is_no_run(stepfast: Command, command: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = stepfast(command, tmp_path / "file")
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.startswith(f"error: {tmp_path / 'file'} is not a directory\n\nhint: ")


@pytest.mark.parametrize("command", ["status", "log", "save", "stop"])
def test_a_checkpoint_where_a_run_is_wanted(stepfast: Command, command: str, finished: Path) -> None:
    answer = stepfast(command, f"{finished}@6")
    assert answer.status == 1
    assert f"hint: this command takes a run without a checkpoint: {finished}" in answer.err


@pytest.mark.parametrize("command", LOOKING)
def test_a_newer_format_is_said(stepfast: Command, command: str, finished: Path) -> None:
    path = finished / "stepfast.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    answer = stepfast(command, finished)
    assert answer.status == 1
    assert "has format 99, this program reads up to 1" in answer.out + answer.err


def test_names_from_files_cannot_act_on_the_terminal(stepfast: Command, tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "a\x1b[2Jb\u202ec", "x")
    answer = stepfast("ls", tmp_path)
    assert r"a\x1b[2Jb\u202ec" in answer.out
    wrong = stepfast("status", tmp_path / "no\x1b[2J")
    assert r"no\x1b[2J does not exist" in wrong.err
    assert "\x1b" not in answer.out + answer.err + wrong.err


def test_a_name_that_is_no_text(stepfast: Command, tmp_path: Path) -> None:
    name = os.fsdecode(b"run-\xff")
    RunDirectory.create(tmp_path / name, "x")
    assert r"run-\udcff" in stepfast("ls", tmp_path).out
    assert stepfast("ls", tmp_path, "--json").json["runs"][0]["path"].endswith(name)
