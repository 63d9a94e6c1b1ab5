"""Reading into place, with every digest compared."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepfast.core.errors import Damaged
from stepfast.core.words import StoredFile
from stepfast.store import reading
from stepfast.store.reading import CheckpointReader, Problem
from stepfast.store.run_directory import RunDirectory
from tests.store import build


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return build.make_run(tmp_path / "run", steps=(100,))


def buffers_for(stored: StoredFile) -> dict[str, memoryview]:
    return {leaf.key: memoryview(bytearray(leaf.size)) for leaf in stored.leaves}


def test_reads_into_place(run: RunDirectory) -> None:
    reader = CheckpointReader(run, 100)
    for stored, data in build.files_of(100):
        buffers = buffers_for(stored)
        reader.read_into(stored, buffers)
        for leaf in stored.leaves:
            assert bytes(buffers[leaf.key]) == data[leaf.offset : leaf.offset + leaf.size]
            one = memoryview(bytearray(leaf.size))
            reader.read_leaf_into(leaf, one)
            assert one == buffers[leaf.key]
        parts: list[bytes] = []
        reader.stream_file(stored, lambda view, parts=parts: parts.append(bytes(view)))  # type: ignore[misc]
        assert b"".join(parts) == data
    assert reader.loop() == {"metric_names": ["loss"], "step": 100}
    assert reader.read_file("metrics-00000000.bin") == bytes(24)
    with pytest.raises(Damaged, match="has no x"):
        reader.read_file("x")


def test_reads_straight_into_arrays_of_any_shape(run: RunDirectory) -> None:
    stored = build.files_of(100)[0][0]
    weight = np.zeros((4, 6), np.float32)
    count = np.zeros((), np.int64)
    CheckpointReader(run, 100).read_into(stored, {"embed.weight": weight.data, "norm.count": count.data})
    np.testing.assert_array_equal(weight, np.arange(24, dtype=np.float32).reshape(4, 6) + 100)
    assert count == 100


def test_an_empty_leaf_takes_nothing_from_the_next_one(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", build.RUN_ID)
    made = build.tensor_file("model.safetensors", {"empty": np.zeros(0, np.uint8), "full": np.ones(9, np.uint8)})
    build.commit(run, 1, [made], aliases={})
    buffers = dict(reversed(buffers_for(made[0]).items()))
    CheckpointReader(run, 1).read_into(made[0], buffers)
    assert bytes(buffers["full"]) == b"\1" * 9


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 300) | st.integers(4000, 9000), min_size=1, max_size=12),
    piece=st.sampled_from([64, 1000, 4096, 1 << 20]),
    views=st.integers(1, 4),
    data=st.data(),
)
def test_any_layout_in_any_pieces(
    tmp_path: Path, sizes: list[int], piece: int, views: int, data: st.DataObject
) -> None:
    """Small pieces make every cut of leaves, scratch and threads happen."""
    arrays = {f"l{number}": np.frombuffer(os.urandom(size), np.uint8) for number, size in enumerate(sizes)}
    path = tmp_path / str(len(os.listdir(tmp_path)))
    run = RunDirectory.create(path, build.RUN_ID)
    stored, _ = made = build.tensor_file("model.safetensors", arrays)
    build.commit(run, 1, [made], aliases={})
    wanted = data.draw(st.sets(st.sampled_from(sorted(arrays))))
    buffers = {key: view for key, view in buffers_for(stored).items() if key in wanted}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "PIECE_BYTES", piece)
        patch.setattr(reading, "_MAX_VIEWS", views)
        CheckpointReader(run, 1).read_into(stored, buffers)
        assert CheckpointReader(run, 1).verify() == []
    for key, buffer in buffers.items():
        assert bytes(buffer) == arrays[key].tobytes()


def test_every_flipped_byte_is_found_and_its_leaf_named(run: RunDirectory) -> None:
    for stored, data in build.files_of(100):
        path = run.checkpoint_path(100) / stored.name
        for offset in range(0, stored.size, 1 if stored.size < 100 else 61):
            leaf = next((leaf for leaf in stored.leaves if leaf.offset <= offset < leaf.offset + leaf.size), None)
            build.flip(path, offset, offset % 8)
            reader = CheckpointReader(run, 100)
            with pytest.raises(Damaged, match=stored.name.replace(".", r"\.")):
                reader.read_into(stored, buffers_for(stored))
            (problem,) = reader.verify()
            assert problem.file == stored.name
            if leaf is not None:
                assert problem == Problem(file=stored.name, leaf=leaf.name, what="is not what its digest says")
                with pytest.raises(Damaged, match=leaf.name):
                    reader.read_leaf_into(leaf, memoryview(bytearray(leaf.size)))
            build.overwrite(path, data)
    assert CheckpointReader(run, 100).verify() == []


@pytest.mark.parametrize("how", ["missing", "empty", "short", "long", "zero tail", "another step", "swapped"])
def test_other_damage_names_the_file(run: RunDirectory, how: str) -> None:
    build.commit(run, 200)
    here = run.checkpoint_path(100)
    file, other = here / "model.safetensors", here / "optimizer.safetensors"
    data = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "swapped":
        content = other.read_bytes()
        build.overwrite(other, data)
        build.overwrite(file, content)
    else:
        step_200 = (run.checkpoint_path(200) / "model.safetensors").read_bytes()
        content = {
            "empty": b"",
            "short": data[:-1],
            "long": data + b"\0",
            "zero tail": data[:-50] + bytes(50),
            "another step": step_200,
        }[how]
        build.overwrite(file, content)
    reader = CheckpointReader(run, 100)
    assert {problem.file for problem in reader.verify(past_page_cache=True)} >= {"model.safetensors"}
    with pytest.raises(Damaged, match=r"model\.safetensors"):
        reader.read_into(reader.manifest.files[0], {})


def test_a_damaged_loop_is_never_parsed(run: RunDirectory) -> None:
    path = run.checkpoint_path(100) / "loop.json"
    build.overwrite(path, path.read_bytes().replace(b"100", b"101"))
    with pytest.raises(Damaged, match=r"loop\.json"):
        CheckpointReader(run, 100).loop()


def test_extra_files_are_listed_and_never_opened(run: RunDirectory) -> None:
    os.mkfifo(run.checkpoint_path(100) / "fifo")
    reader = CheckpointReader(run, 100)
    assert reader.extra_files() == ["fifo"]
    assert reader.verify() == []


def test_a_sink_that_fails_leaves_no_thread(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", 64)

    def sink(view: memoryview) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        CheckpointReader(run, 100).stream_file(build.files_of(100)[0][0], sink)
