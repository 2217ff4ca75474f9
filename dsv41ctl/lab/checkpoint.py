"""Makes the lab's checkpoint and installs its image. Both are idempotent."""

import shutil
from pathlib import Path

from dsv41ctl.engram.build import build_manifest, is_current
from dsv41ctl.engram.files import atomic_write
from dsv41ctl.engram.hashing import Progress
from dsv41ctl.engram.manifest import load_manifest, save_manifest
from dsv41ctl.engram.synth import synth_checkpoint
from dsv41ctl.errors import Dsv41Error
from dsv41ctl.lab.layout import IMAGE_SOURCE
from dsv41ctl.lab.weights import TEXT_CONFIG, write_weights

__all__ = ["install_image", "prepare_model"]

_LAYERS = (1, 14)


def prepare_model(directory: Path, vocab_size: int, seed: int, progress: Progress | None = None) -> bool:
    """Makes tables, dense weights, index and manifest.json in a directory.

    Args:
        directory: made if missing.
        vocab_size: engram_vocab_size of the tables.
        seed: the same seed, the same bytes.
        progress: told about written bytes, then about hashed bytes.

    Returns:
        Whether anything changed.
    """
    written: list[bool] = []

    def dense(path: Path) -> None:
        written.append(write_weights(path, seed=seed, engram_layers=_LAYERS))

    changed = synth_checkpoint(
        directory,
        vocab_size=vocab_size,
        layers=_LAYERS,
        seed=seed,
        extra_text_config=TEXT_CONFIG,
        extra_config={"model_type": "lab"},
        extra_shard=dense,
        progress=progress,
    )
    return _manifest(directory, progress) or changed or any(written)


def _manifest(directory: Path, progress: Progress | None) -> bool:
    path = directory / "manifest.json"
    if path.is_file():
        try:
            if is_current(load_manifest(path), directory, path):
                return False
        except Dsv41Error:
            # A manifest that does not load is made anew.
            pass
    return save_manifest(build_manifest(directory, name="lab", progress=progress), path)


def install_image(directory: Path) -> bool:
    """Copies the lab's image to where its hosts run it. False: it was there already, byte for byte."""
    changed = False
    wanted = {path.relative_to(IMAGE_SOURCE) for path in IMAGE_SOURCE.rglob("*.py")}
    for name in sorted(wanted):
        target, data = directory / name, (IMAGE_SOURCE / name).read_bytes()
        if not target.is_file() or target.read_bytes() != data:
            atomic_write(target, data)
            changed = True
    for path in sorted(directory.rglob("*.py")):
        if path.relative_to(directory) not in wanted:
            path.unlink()
            # Its compiled form would still be imported.
            shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)
            changed = True
    return changed
