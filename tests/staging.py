"""A staged tree as a node has it, made from this checkout."""

import shutil
from pathlib import Path

from dsv41ctl import assets


def stage_reader(root: Path, manifest: Path) -> Path:
    """Copies everything but the overlay; returns the directory that the seed calls `offload/engram/spark`."""
    spark = root / "offload/engram/spark"
    for room in ("py", "tools"):
        shutil.copytree(assets.overlays() / room, spark / room, ignore=shutil.ignore_patterns("__pycache__"))
    binding = assets.native() / "reader/engram_remote.cpp"
    for room in ("transport", "reader"):
        (root / "offload" / room).mkdir(parents=True)
        for source in sorted((assets.native() / room).iterdir()):
            if source.suffix in (".h", ".cpp") and source != binding and "_server" not in source.stem:
                shutil.copy(source, root / "offload" / room)
    shutil.copy(binding, spark)
    shutil.copy(manifest, root)
    return spark
