import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from engram_files import flip, leftovers

from dsv41ctl.engram import verify as verify_module
from dsv41ctl.engram.manifest import Manifest
from dsv41ctl.engram.safetensors import ShardError
from dsv41ctl.engram.synth import synth_checkpoint
from dsv41ctl.engram.verify import default_state, verify_tables
from dsv41ctl.errors import CheckFailed, Dsv41Error

SLOW = """
import sys, time
from pathlib import Path
from dsv41ctl.engram import verify
from dsv41ctl.engram.manifest import load_manifest
verify._SAVE_EVERY_S = float(sys.argv[3])
def slow(done, total):
    print(done, flush=True)
    time.sleep(0.03)
directory = Path(sys.argv[1])
verify.verify_tables(load_manifest(directory / "manifest.json"), directory, state_path=Path(sys.argv[2]), threads=1, progress=slow)
"""


class Stop(Exception):
    pass


def stopping_after(count: int) -> "verify_module.Progress":
    seen = []

    def progress(done: int, total: int) -> None:
        seen.append(done)
        if len(seen) > count:
            raise Stop

    return progress


def test_an_intact_checkpoint_verifies(checkpoint: Path, manifest: Manifest) -> None:
    result = verify_tables(manifest, checkpoint)
    assert result.ok
    assert (
        result.hashed == result.segments == sum(len(t.weight.segments) + len(t.scale.segments) for t in manifest.layers)
    )
    assert result.resumed == 0


@pytest.mark.parametrize(
    ("layer", "plane", "at"), [(1, "weight", 0), (1, "scale", 100), (14, "weight", 65536), (14, "scale", -1)]
)
def test_one_flipped_bit_is_found_and_named(
    checkpoint: Path, manifest: Manifest, layer: int, plane: str, at: int
) -> None:
    said = manifest.table(layer).weight if plane == "weight" else manifest.table(layer).scale
    at %= said.bytes
    flip(checkpoint / said.file, said.offset + at)
    result = verify_tables(manifest, checkpoint)
    assert not result.ok
    (bad,) = result.mismatches
    assert (bad.layer, bad.plane, bad.segment, bad.file) == (layer, plane, at // 65536, said.file)
    assert bad.begin <= said.offset + at < bad.end
    width = 256 if plane == "weight" else 8
    assert bad.first_row <= at // width <= bad.last_row
    assert f"layer {layer} {plane} segment {bad.segment}: bytes [{bad.begin}, {bad.end}) of {said.file}" in str(bad)


def test_bytes_around_the_planes_do_not_matter(checkpoint: Path, manifest: Manifest) -> None:
    table = manifest.table(1)
    flip(checkpoint / table.weight.file, table.weight.offset - 1)
    flip(checkpoint / table.scale.file, table.scale.offset + table.scale.bytes)
    assert verify_tables(manifest, checkpoint).ok


def test_all_mismatches_or_the_first(checkpoint: Path, manifest: Manifest, tmp_path: Path) -> None:
    state = tmp_path / "state"
    for table in manifest.layers:
        flip(checkpoint / table.weight.file, table.weight.offset)
        flip(checkpoint / table.scale.file, table.scale.offset)
    found = verify_tables(manifest, checkpoint, state_path=state).mismatches
    assert [(bad.layer, bad.plane) for bad in found] == [(1, "weight"), (1, "scale"), (14, "weight"), (14, "scale")]
    assert not state.exists()
    result = verify_tables(manifest, checkpoint, state_path=state, stop_at_first=True)
    assert len(result.mismatches) == 1
    assert not result.complete
    assert state.exists()


def test_an_interrupted_run_goes_on_where_it_was(checkpoint: Path, manifest: Manifest) -> None:
    state = default_state(checkpoint / "manifest.json")
    with pytest.raises(Stop):
        verify_tables(manifest, checkpoint, state_path=state, progress=stopping_after(10))
    result = verify_tables(manifest, checkpoint, state_path=state)
    assert result.ok
    assert result.resumed == 10
    assert result.hashed == result.segments - 10
    assert not state.exists()


def test_a_mismatch_is_not_taken_over_as_done(checkpoint: Path, manifest: Manifest, tmp_path: Path) -> None:
    table = manifest.table(1)
    flip(checkpoint / table.weight.file, table.weight.offset)
    state = tmp_path / "state"
    with pytest.raises(Stop):
        verify_tables(manifest, checkpoint, state_path=state, threads=1, progress=stopping_after(20))
    assert len(verify_tables(manifest, checkpoint, state_path=state).mismatches) == 1


def test_a_file_that_changed_since_is_hashed_again(checkpoint: Path, manifest: Manifest, tmp_path: Path) -> None:
    state = tmp_path / "state"
    total = verify_tables(manifest, checkpoint).segments
    with pytest.raises(Stop):
        verify_tables(manifest, checkpoint, state_path=state, threads=1, progress=stopping_after(total - 1))
    table = manifest.table(1)
    flip(checkpoint / table.weight.file, table.weight.offset)
    result = verify_tables(manifest, checkpoint, state_path=state)
    assert [(bad.layer, bad.plane, bad.segment) for bad in result.mismatches] == [(1, "weight", 0)]
    assert 0 < result.resumed < total  # layer 14's file did not change


def test_the_state_of_another_manifest_is_not_used(checkpoint: Path, manifest: Manifest, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with pytest.raises(Stop):
        verify_tables(manifest, checkpoint, state_path=state, progress=stopping_after(10))
    saved = json.loads(state.read_text())
    state.write_text(json.dumps(saved | {"manifest": "0" * 64}))
    assert verify_tables(manifest, checkpoint, state_path=state).resumed == 0
    state.write_text("half a sta")
    assert verify_tables(manifest, checkpoint, state_path=state).resumed == 0


def test_a_place_for_the_state_that_cannot_be_written_is_told_at_once(checkpoint: Path, manifest: Manifest) -> None:
    with pytest.raises(Dsv41Error, match="cannot write"):
        verify_tables(manifest, checkpoint, state_path=checkpoint / "config.json" / "state", progress=stopping_after(0))


@pytest.mark.parametrize(("how", "save_every"), [(signal.SIGINT, 60.0), (signal.SIGKILL, 0.0)])
def test_a_killed_process_loses_little(
    checkpoint: Path, manifest: Manifest, tmp_path: Path, how: signal.Signals, save_every: float
) -> None:
    state = tmp_path / "state"
    argv = [sys.executable, "-c", SLOW, str(checkpoint), str(state), str(save_every)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for _ in range(8):
            assert process.stdout.readline()
        os.kill(process.pid, how)
        process.stdout.read()
        assert process.wait(20) != 0
    if how == signal.SIGINT:
        assert leftovers(tmp_path) == []
    result = verify_tables(manifest, checkpoint, state_path=state)
    assert result.ok
    assert 6 <= result.resumed < result.segments
    assert not state.exists()


def test_truncated_missing_and_foreign_files(checkpoint: Path, manifest: Manifest, tmp_path: Path) -> None:
    synth_checkpoint(tmp_path / "foreign", vocab_size=150)
    with pytest.raises(ShardError, match="wrong shape"):
        verify_tables(manifest, tmp_path / "foreign")
    shard = checkpoint / manifest.table(14).weight.file
    os.truncate(shard, shard.stat().st_size - 4000)
    with pytest.raises(ShardError, match=r"truncated shard, tensor layers\.14"):
        verify_tables(manifest, checkpoint)
    shard.unlink()
    with pytest.raises(ShardError, match="missing shard"):
        verify_tables(manifest, checkpoint)


def test_a_shard_with_another_placement_is_another_checkpoint(checkpoint: Path, manifest: Manifest) -> None:
    table = manifest.table(1)
    moved = table.model_copy(update={"weight": table.weight.model_copy(update={"offset": table.weight.offset - 1})})
    other = manifest.model_copy(update={"layers": (moved,)})
    with pytest.raises(CheckFailed, match=r"manifest of another checkpoint: layer 1 weight\.offset"):
        verify_tables(other, checkpoint)


def test_a_file_that_changes_during_the_run_is_not_ok(checkpoint: Path, manifest: Manifest, tmp_path: Path) -> None:
    shard = checkpoint / manifest.table(1).weight.file

    def swap(done: int, total: int) -> None:
        if done == 0:
            shard.write_bytes(shard.read_bytes())

    with pytest.raises(ShardError, match="changed while it was verified"):
        verify_tables(manifest, checkpoint, state_path=tmp_path / "state", progress=swap)
