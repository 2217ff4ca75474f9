import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from engram_files import leftovers

from dsv41ctl.engram.layout import read_geometry
from dsv41ctl.engram.safetensors import ShardError, layer_planes, read_header, read_index
from dsv41ctl.engram.synth import first_shard_name, synth_checkpoint, write_index
from dsv41ctl.errors import Dsv41Error, UsageError


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def test_the_same_seed_makes_the_same_bytes_and_another_one_others(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        assert synth_checkpoint(tmp_path / name, vocab_size=64, seed=seed)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    same = set(digests(tmp_path / "a").items()) & set(digests(tmp_path / "c").items())
    assert {name for name, _ in same} == {"config.json", "model.safetensors.index.json"}


def test_the_recipe_is_fixed(tmp_path: Path) -> None:
    """Bytes of a seed may not change unnoticed: labs on two machines must have the same identities."""
    synth_checkpoint(tmp_path, vocab_size=64, layers=[1], seed=41)
    weight, scale = layer_planes(tmp_path, 1, read_geometry(tmp_path).rows(1))
    raw = weight.path.read_bytes()
    planes = raw[weight.offset : weight.offset + weight.bytes] + raw[scale.offset : scale.offset + scale.bytes]
    assert hashlib.sha256(planes).hexdigest() == "172bfad90a4a3194ea5c50c1c00f6e83bd9d69f16ae335bf7e43deaaa135d374"


def test_a_second_run_changes_nothing_and_repairs_what_is_missing(tmp_path: Path) -> None:
    synth_checkpoint(tmp_path, vocab_size=64)
    before = digests(tmp_path)
    assert not synth_checkpoint(tmp_path, vocab_size=64)
    shard = tmp_path / "model-00003-of-00003.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)
    assert synth_checkpoint(tmp_path, vocab_size=64)
    assert digests(tmp_path) == before
    assert leftovers(tmp_path) == []


def test_planes_have_no_nan_and_moderate_scales_at_odd_offsets(tmp_path: Path) -> None:
    synth_checkpoint(tmp_path, vocab_size=64)
    geometry = read_geometry(tmp_path)
    for layer in geometry.layer_ids:
        weight, scale = layer_planes(tmp_path, layer, geometry.rows(layer))
        raw = weight.path.read_bytes()
        weights = set(raw[weight.offset : weight.offset + weight.bytes])
        assert weights == set(range(256)) - {0x7F, 0xFF}
        assert set(raw[scale.offset : scale.offset + scale.bytes]) == set(range(118, 127))
        assert weight.path == scale.path
        assert weight.offset % 4096
        assert weight.offset % 2
        assert weight.offset > read_header(weight.path).data_start
        assert scale.offset + scale.bytes < len(raw)


def test_the_package_that_serves_use_reads_it(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors", reason="the lab extra is not installed")
    synth_checkpoint(tmp_path, vocab_size=64)
    with safetensors.safe_open(tmp_path / "model-00002-of-00003.safetensors", "pt") as shard:
        part = shard.get_slice("layers.1.engram.embed.weight")
        assert (part.get_dtype(), part.get_shape()) == ("F8_E4M3", [read_geometry(tmp_path).rows(1), 256])


def test_a_caller_adds_keys_and_the_first_shard(tmp_path: Path) -> None:
    def first(path: Path) -> None:
        header = json.dumps({"embed.weight": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + b"abcd")

    extra = {"hidden_size": 64, "engram_compressed_vocab_size": 300}
    synth_checkpoint(
        tmp_path, vocab_size=64, extra_text_config=extra, extra_config={"model_type": "lab"}, extra_shard=first
    )
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "lab"
    assert config["text_config"]["hidden_size"] == 64
    assert read_geometry(tmp_path).compressed_vocab_size == 300
    assert read_index(tmp_path)["embed.weight"] == first_shard_name(2) == "model-00001-of-00003.safetensors"
    assert not write_index(tmp_path)


def test_a_tensor_in_two_shards_makes_no_index(tmp_path: Path) -> None:
    synth_checkpoint(tmp_path, vocab_size=64, layers=[1])
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(
        (tmp_path / "model-00002-of-00002.safetensors").read_bytes()
    )
    with pytest.raises(ShardError, match="tensor also in model-00001-of-00002"):
        write_index(tmp_path)


def test_a_disk_that_fills_up_leaves_nothing_half_written(tmp_path: Path) -> None:
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from dsv41ctl.engram.synth import synth_checkpoint\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
        "synth_checkpoint(Path(sys.argv[1]), vocab_size=64)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "model-00002-of-00003.safetensors: File too large" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_numpy_missing_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dsv41ctl.engram._noise", None)
    monkeypatch.delattr("dsv41ctl.engram._noise", raising=False)
    with pytest.raises(Dsv41Error, match=r"needs numpy \(next: pip install 'dsv41ctl\[lab\]'\)"):
        synth_checkpoint(tmp_path, vocab_size=64)
    assert leftovers(tmp_path) == []


def test_nothing_but_making_tables_imports_numpy_or_torch() -> None:
    script = (
        "import sys\n"
        "from dsv41ctl.engram import build, layout, manifest, pack, safetensors, synth, verify\n"
        "print([name for name in ('numpy', 'torch', 'safetensors') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_vocabulary_without_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too small"):
        synth_checkpoint(tmp_path, vocab_size=1)
