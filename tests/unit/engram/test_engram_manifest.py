import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from engram_files import flip, leftovers
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41ctl.engram.build import build_manifest, is_current, placement_differences
from dsv41ctl.engram.hashing import hash_segments, segments_of
from dsv41ctl.engram.manifest import (
    Manifest,
    compute_identity,
    differences,
    identity_text,
    load_manifest,
    save_manifest,
)
from dsv41ctl.engram.safetensors import ShardError, layer_planes
from dsv41ctl.engram.synth import synth_checkpoint
from dsv41ctl.errors import Dsv41Error, UsageError


def test_the_identity_is_that_of_the_written_text(manifest: Manifest) -> None:
    table = manifest.table(14)
    lines = [
        "dsv41-engram-identity-v1",
        "layer=14",
        f"rows={table.rows}",
        "head_sizes=" + ",".join(map(str, table.head_sizes)),
        "segment_bytes=65536",
        f"weight=F8_E4M3:256:{table.weight.digest}",
        f"scale=F8_E8M0:8:{table.scale.digest}",
    ]
    assert table.identity == hashlib.sha256(("\n".join(lines) + "\n").encode()).hexdigest()


FIELDS: dict[str, Any] = {
    "layer": 1,
    "rows": 10,
    "head_sizes": (3, 7),
    "segment_bytes": 64,
    "weight_digest": "a" * 64,
    "scale_digest": "b" * 64,
}


@settings(max_examples=100)
@given(
    other=st.fixed_dictionaries(
        {},
        optional={
            "layer": st.integers(0, 99),
            "rows": st.integers(1, 10**9),
            "head_sizes": st.lists(st.integers(1, 99), max_size=4).map(tuple),
            "segment_bytes": st.integers(1, 10**9),
            "weight_digest": st.binary(min_size=32, max_size=32).map(bytes.hex),
            "scale_digest": st.binary(min_size=32, max_size=32).map(bytes.hex),
        },
    )
)
def test_the_identity_tells_every_field_apart(other: dict[str, Any]) -> None:
    changed = FIELDS | other
    assert (compute_identity(**FIELDS) == compute_identity(**changed)) == (changed == FIELDS)
    assert identity_text(**changed).isascii()


def test_digests_equal_naive_hashing_of_the_planes(checkpoint: Path, manifest: Manifest) -> None:
    for table in manifest.layers:
        for plane in (table.weight, table.scale):
            raw = (checkpoint / plane.file).read_bytes()[plane.offset : plane.offset + plane.bytes]
            parts = [raw[at : at + 65536] for at in range(0, len(raw), 65536)]
            assert list(plane.segments) == [hashlib.sha256(part).hexdigest() for part in parts]
            joined = b"".join(hashlib.sha256(part).digest() for part in parts)
            assert plane.digest == hashlib.sha256(joined).hexdigest()


@settings(max_examples=40, deadline=None)
@given(
    data=st.binary(min_size=1, max_size=3000),
    offset=st.integers(0, 50),
    segment=st.integers(1, 700),
    threads=st.integers(1, 4),
)
def test_any_segmentation_equals_naive_hashing(
    data: bytes, offset: int, segment: int, threads: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "plane"
    path.write_bytes(bytes(offset) + data + b"behind")
    cut = list(segments_of(1, "weight", path, offset, len(data), segment))
    found = {one.index: digest for one, digest in hash_segments(cut, threads=threads)}
    naive = [hashlib.sha256(data[at : at + segment]).hexdigest() for at in range(0, len(data), segment)]
    assert [found[index] for index in range(len(cut))] == naive


def test_threads_make_no_difference(checkpoint: Path, manifest: Manifest) -> None:
    one = build_manifest(checkpoint, name="small", segment_bytes=manifest.segment_bytes, threads=1)
    assert one == manifest


def test_progress_ends_at_the_total(checkpoint: Path) -> None:
    seen: list[tuple[int, int]] = []
    made = build_manifest(checkpoint, progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (0, made.total_bytes)
    assert seen[-1] == (made.total_bytes, made.total_bytes)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_zero_threads_are_refused(checkpoint: Path) -> None:
    with pytest.raises(UsageError, match="--threads 1 or more"):
        build_manifest(checkpoint, threads=0)


def test_it_survives_a_round_trip_and_has_the_shape_of_the_contract(manifest: Manifest, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "manifest.json"
    assert save_manifest(manifest, path) is True
    assert save_manifest(manifest, path) is False
    assert load_manifest(path) == manifest
    assert load_manifest(path).digest == manifest.digest
    data = json.loads(path.read_bytes())
    assert list(data) == ["schema", "checkpoint", "geometry", "row_format", "segment_bytes", "layers"]
    assert data["schema"] == 1
    assert data["row_format"] == {
        "weight_dtype": "F8_E4M3", "weight_bytes": 256, "scale_dtype": "F8_E8M0", "scale_bytes": 8, "row_bytes": 264,
    }  # fmt: skip
    assert list(data["layers"][0]["weight"]) == ["file", "tensor", "offset", "bytes", "digest", "segments"]
    assert data["layers"][0]["weight"]["tensor"] == "layers.1.engram.embed.weight"


def _edited(manifest: Manifest, *path: str | int, value: object) -> bytes:
    data: Any = json.loads(manifest.to_json())
    inner = data
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema",), 2, "schema"),
        (("layers", 0, "identity"), "0" * 64, "layer 1: identity 0000"),
        (("layers", 0, "weight", "digest"), "0" * 64, "digest is not that of the segments"),
        (("layers", 0, "weight", "segments"), [], "digest is not that of the segments"),
        (("layers", 0, "weight", "file"), "../other", "file"),
        (("layers", 0, "weight", "file"), "/etc/passwd", "file"),
        (("layers", 0, "weight", "tensor"), None, "a packed plane has no tensor"),
        (("layers", 0, "weight", "bytes"), 1024, "does not hold"),
        (("layers", 0, "layer"), 14, "layer 14: head sizes or rows do not follow"),
        (("layers", 0, "rows"), 3, "head sizes or rows do not follow"),
        (("layers", 0, "head_sizes", 0), 3, "head sizes or rows do not follow"),
        (("segment_bytes",), 1 << 30, "do not cover"),
        (("geometry", "vocab_size"), 50, "num_embeddings"),
        (("row_format", "row_bytes"), 265, "row_bytes"),
        (("extra",), 1, "extra"),
    ],
)
def test_a_manifest_that_contradicts_itself_does_not_load(
    manifest: Manifest, path: tuple[str | int, ...], value: object, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "manifest.json"
    file.write_bytes(_edited(manifest, *path, value=value))
    with pytest.raises(Dsv41Error) as caught:
        load_manifest(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "next: dsv41ctl tables manifest" in str(caught.value)


def test_no_manifest_and_no_json(tmp_path: Path) -> None:
    with pytest.raises(Dsv41Error, match="no manifest"):
        load_manifest(tmp_path / "manifest.json")
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(Dsv41Error, match="Invalid JSON"):
        load_manifest(tmp_path / "manifest.json")


def test_differences_name_the_fields(checkpoint: Path, manifest: Manifest, tmp_path: Path) -> None:
    assert differences(manifest, manifest) == []
    synth_checkpoint(tmp_path / "other", vocab_size=101, seed=8)
    other = build_manifest(tmp_path / "other", segment_bytes=manifest.segment_bytes)
    text = "\n".join(differences(manifest, other))
    assert "layer 1 weight.digest" in text
    assert "layer 14 identity" in text
    assert "geometry" not in text
    synth_checkpoint(tmp_path / "larger", vocab_size=150)
    text = "\n".join(differences(manifest, build_manifest(tmp_path / "larger", layers=[14])))
    assert "geometry.vocab_size: 101 != 150" in text
    assert "layers: [1, 14] != [14]" in text
    flip(checkpoint / manifest.table(1).weight.file, manifest.table(1).weight.offset + 70_000)
    again = build_manifest(checkpoint, segment_bytes=manifest.segment_bytes)
    assert any("segments: 1 of" in line and "first is 1" in line for line in differences(again, manifest))


def test_one_layer_only(checkpoint: Path, manifest: Manifest) -> None:
    made = build_manifest(checkpoint, layers=[14], segment_bytes=manifest.segment_bytes)
    assert made.identities == {14: manifest.identities[14]}
    with pytest.raises(UsageError, match="no layer 1; it has 14"):
        made.table(1)
    with pytest.raises(UsageError, match="layer 3 has no Engram table"):
        build_manifest(checkpoint, layers=[3])


def test_a_manifest_is_current_until_a_shard_changes(checkpoint: Path, manifest: Manifest) -> None:
    path = checkpoint / "manifest.json"
    path.touch()
    assert is_current(manifest, checkpoint, path)
    assert not is_current(manifest, checkpoint, path, [1])
    shard = checkpoint / manifest.table(1).weight.file
    before = shard.stat()
    time.sleep(0.02)
    flip(shard, manifest.table(1).weight.offset)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a copying tool would
    assert not is_current(manifest, checkpoint, path)
    shard.unlink()
    assert not is_current(manifest, checkpoint, path)


def test_a_shard_that_changes_while_it_is_hashed_makes_no_manifest(checkpoint: Path, manifest: Manifest) -> None:
    shard = checkpoint / manifest.table(1).weight.file

    def swap(done: int, total: int) -> None:
        if done == 0:
            shard.write_bytes(shard.read_bytes())

    with pytest.raises(ShardError, match="changed while it was hashed"):
        build_manifest(checkpoint, progress=swap)


def test_placement_is_compared_with_the_headers(checkpoint: Path, manifest: Manifest) -> None:
    assert placement_differences(manifest, checkpoint) == []
    info = layer_planes(checkpoint, 1, manifest.table(1).rows)[0]
    table = manifest.table(1)
    moved = table.model_copy(update={"weight": table.weight.model_copy(update={"offset": info.offset + 1})})
    other = manifest.model_copy(update={"layers": (moved, manifest.table(14))})
    assert placement_differences(other, checkpoint) == [
        f"layer 1 weight.offset: the shard says {info.offset}, the manifest {info.offset + 1}"
    ]


def test_a_failing_write_leaves_the_old_manifest(checkpoint: Path, manifest: Manifest) -> None:
    """The disk gives up halfway: a real write error, from a limit on file size."""
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from dsv41ctl.engram.build import build_manifest\n"
        "from dsv41ctl.engram.manifest import save_manifest\n"
        "made = build_manifest(Path(sys.argv[1]), name='other', segment_bytes=4096)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "save_manifest(made, Path(sys.argv[1]) / 'manifest.json')\n"
    )
    before = (checkpoint / "manifest.json").read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", script, checkpoint], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert f"cannot write {checkpoint / 'manifest.json'}: File too large" in done.stderr
    assert (checkpoint / "manifest.json").read_bytes() == before
    assert leftovers(checkpoint) == []
