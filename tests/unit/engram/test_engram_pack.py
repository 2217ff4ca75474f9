import json
import os
from pathlib import Path

import pytest
from engram_files import flip, leftovers

from dsv41ctl.engram import pack as pack_module
from dsv41ctl.engram.manifest import Manifest, load_manifest, save_manifest
from dsv41ctl.engram.pack import pack_layer, pack_name, packed_manifest, read_packed
from dsv41ctl.engram.safetensors import ShardError
from dsv41ctl.engram.verify import verify_tables
from dsv41ctl.errors import CheckFailed, Dsv41Error


@pytest.fixture
def packed(checkpoint: Path, manifest: Manifest, tmp_path: Path) -> tuple[Path, Manifest]:
    out = tmp_path / "packed"
    for table in manifest.layers:
        assert pack_layer(manifest, checkpoint, table.layer, out)
    made = packed_manifest(manifest)
    save_manifest(made, out / "manifest.json")
    return out, made


def test_packed_files_have_the_planes_on_page_borders(
    packed: tuple[Path, Manifest], checkpoint: Path, manifest: Manifest
) -> None:
    out, made = packed
    for table in manifest.layers:
        raw = (out / pack_name(table.layer)).read_bytes()
        assert raw.startswith(b"DSV41PK1{")
        header = json.loads(raw[8:4096].rstrip(b"\0"))
        assert list(header) == ["layer", "rows", "weight_offset", "scale_offset", "identity"]
        assert header["weight_offset"] == 4096
        assert header["scale_offset"] % 4096 == 0
        assert header["identity"] == table.identity
        for name, plane in (("weight", table.weight), ("scale", table.scale)):
            source = (checkpoint / plane.file).read_bytes()[plane.offset : plane.offset + plane.bytes]
            at = header[f"{name}_offset"]
            assert raw[at : at + plane.bytes] == source
    assert made.identities == manifest.identities
    data = json.loads((out / "manifest.json").read_bytes())
    assert data["layers"][0]["weight"]["tensor"] is None
    assert data["layers"][0]["weight"]["packed"] is True
    assert load_manifest(out / "manifest.json") == made


def test_a_packed_set_verifies_without_the_checkpoint(packed: tuple[Path, Manifest]) -> None:
    out, made = packed
    assert verify_tables(made, out).ok
    flip(out / pack_name(14), 4096 + 65536)
    (bad,) = verify_tables(made, out).mismatches
    assert (bad.layer, bad.plane, bad.segment) == (14, "weight", 1)


def test_packing_twice_changes_nothing(packed: tuple[Path, Manifest], checkpoint: Path, manifest: Manifest) -> None:
    assert not pack_layer(manifest, checkpoint, 1, packed[0])
    os.truncate(packed[0] / pack_name(1), 5000)
    assert pack_layer(manifest, checkpoint, 1, packed[0])
    assert verify_tables(packed[1], packed[0]).ok


def test_a_damaged_source_is_not_packed(checkpoint: Path, manifest: Manifest, tmp_path: Path) -> None:
    scale = manifest.table(1).scale
    flip(checkpoint / scale.file, scale.offset + scale.bytes - 1)
    out = tmp_path / "packed"
    with pytest.raises(CheckFailed, match=r"layer 1 scale segment .* does not match the manifest"):
        pack_layer(manifest, checkpoint, 1, out)
    assert list(out.iterdir()) == []


def test_no_space_is_told_before_anything_is_written(
    checkpoint: Path, manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pack_module.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(pack_module.shutil, "disk_usage", lambda _: real._replace(free=1000))
    with pytest.raises(Dsv41Error, match="bytes are needed, 1000 are free"):
        pack_layer(manifest, checkpoint, 1, tmp_path / "packed")
    assert leftovers(tmp_path) == []


def test_a_foreign_or_malformed_packed_file_is_named(packed: tuple[Path, Manifest], tmp_path: Path) -> None:
    out, made = packed
    (out / pack_name(1)).write_bytes((out / pack_name(14)).read_bytes())
    with pytest.raises(
        CheckFailed, match=r"engram-layer-01\.dsv41pack: layer 1 layer: the file says 14, the manifest 1"
    ):
        verify_tables(made, out)
    for raw in (b"", b"DSV41PK1", b"X" * 5000, b"DSV41PK1{}".ljust(4096, b"\0"), b"DSV41PK1{".ljust(4096, b"\0")):
        path = tmp_path / "bad"
        path.write_bytes(raw)
        with pytest.raises(ShardError, match="packed"):
            read_packed(path)
    with pytest.raises(ShardError, match="cannot read"):
        read_packed(tmp_path / "none")


def test_a_packed_table_is_not_packed_again(packed: tuple[Path, Manifest], tmp_path: Path) -> None:
    with pytest.raises(Dsv41Error, match="already packed"):
        pack_layer(packed[1], packed[0], 1, tmp_path / "again")
