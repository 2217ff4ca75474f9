import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv41ctl.engram.build import build_manifest
from dsv41ctl.engram.manifest import Manifest, save_manifest
from dsv41ctl.engram.synth import synth_checkpoint

SEGMENT_BYTES = 65536
REPO = Path(__file__).resolve().parents[3]
TOOLS = REPO / "overlays" / "tools"


@pytest.fixture(scope="session")
def checkpoint_made_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """Two layers of some 5000 rows, with a manifest of small segments."""
    directory = tmp_path_factory.mktemp("checkpoint")
    synth_checkpoint(directory, vocab_size=101, seed=7)
    manifest = build_manifest(directory, name="small", segment_bytes=SEGMENT_BYTES, threads=2)
    save_manifest(manifest, directory / "manifest.json")
    return directory, manifest


@pytest.fixture
def checkpoint(checkpoint_made_once: tuple[Path, Manifest], tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(checkpoint_made_once[0], tmp_path / "model"))


@pytest.fixture
def manifest(checkpoint_made_once: tuple[Path, Manifest]) -> Manifest:
    return checkpoint_made_once[1]


@pytest.fixture
def run_tool() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script of overlays/tools as a node would."""

    def run(name: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(TOOLS / name), *(str(argument) for argument in arguments)]
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=120, check=False, env={"PATH": "/usr/bin:/bin", **environment}
        )

    return run
