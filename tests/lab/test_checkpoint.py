"""Making the lab: the same bytes from the same seed, once."""

import hashlib
import json
from pathlib import Path

from dsv41ctl.engram.manifest import load_manifest
from dsv41ctl.lab.checkpoint import install_image, prepare_model
from dsv41ctl.lab.layout import IMAGE_SOURCE, LabLayout
from dsv41ctl.lab.weights import make_weights, write_weights


def test_weights_are_the_same_everywhere() -> None:
    tensors = make_weights(41, (1, 14))
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(name.encode() + tensor.tobytes())
    assert digest.hexdigest() == "bd7b20dbe1cbc595ab7ab887c89d3e7baa9330edc9549127f8eb23e616299353"
    assert (make_weights(42, (1, 14))["lm_head.weight"] != tensors["lm_head.weight"]).any()


def test_weights_are_written_once_and_healed(tmp_path: Path) -> None:
    path = tmp_path / "model-00001-of-00003.safetensors"
    assert write_weights(path, seed=1, engram_layers=(1, 14))
    whole = path.read_bytes()
    assert not write_weights(path, seed=1, engram_layers=(1, 14))
    assert write_weights(path, seed=2, engram_layers=(1, 14))
    path.write_bytes(whole[:-1])
    assert write_weights(path, seed=1, engram_layers=(1, 14))
    assert path.read_bytes() == whole
    path.write_bytes(b"no shard")
    assert write_weights(path, seed=1, engram_layers=(1, 14))


def test_prepare_model_is_idempotent(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    assert prepare_model(tmp_path, 300, 7, lambda done, total: told.append((done, total)))
    assert told
    assert all(0 <= done <= total for done, total in told)
    stamps = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert set(stamps) >= {"config.json", "model.safetensors.index.json", "manifest.json"}
    assert not prepare_model(tmp_path, 300, 7)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == stamps
    config = json.loads((tmp_path / "config.json").read_text())["text_config"]
    assert (config["num_hidden_layers"], config["engram_vocab_size"]) == (16, 300)
    before = load_manifest(tmp_path / "manifest.json")
    assert prepare_model(tmp_path, 300, 8)
    assert load_manifest(tmp_path / "manifest.json").identities != before.identities
    (tmp_path / "manifest.json").write_text("{")
    assert prepare_model(tmp_path, 300, 8)
    load_manifest(tmp_path / "manifest.json")


def test_install_image_copies_and_repairs(tmp_path: Path) -> None:
    layout = LabLayout(tmp_path)
    assert install_image(layout.image)
    assert not install_image(layout.image)
    assert layout.engram.read_bytes() == (IMAGE_SOURCE / "lab_engine/engram.py").read_bytes()
    layout.engram.write_text("changed")
    stale = layout.image / "lab_engine/old.py"
    stale.write_text("")
    assert install_image(layout.image)
    assert not stale.exists()
    assert layout.engram.read_bytes() == (IMAGE_SOURCE / "lab_engine/engram.py").read_bytes()


def test_layout() -> None:
    layout = LabLayout(Path("/lab"))
    assert [str(path) for path in (layout.model, layout.manifest, layout.host("spark"), layout.image)] == [
        "/lab/model",
        "/lab/model/manifest.json",
        "/lab/hosts/spark",
        "/lab/image",
    ]
