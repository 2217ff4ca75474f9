"""The overlay takes the image module's place in every process, or the process does not start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsv41ctl import assets

PY = assets.overlays() / "py"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image with one module, and the overlay beside it."""
    (tmp_path / "image/packed").mkdir(parents=True)
    (tmp_path / "image/packed/__init__.py").touch()
    (tmp_path / "image/packed/rows.py").write_text("WHO = 'image'\n")
    overlay = "# DSV41-OFFLOAD module: packed.rows\nWHO = 'overlay'\nIMAGE = __dsv41_image_file__\n"
    (tmp_path / "staged").mkdir()
    (tmp_path / "staged/rows.py").write_text(overlay)
    return tmp_path


def python(image: Path, code: str, *, overlay: str | None, before: Path = PY) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DSV41_")}
    environment["PYTHONPATH"] = os.pathsep.join((str(before), str(image / "image")))
    if overlay is not None:
        environment["DSV41_ENGRAM_OVERLAY"] = overlay
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, check=False, capture_output=True, text=True, env=environment, timeout=30)


def test_the_overlay_runs_under_the_modules_name(image: Path) -> None:
    code = "import packed.rows as e; print(e.WHO, e.__name__, e.__file__, e.IMAGE)"
    overlay = image / "staged/rows.py"
    ran = python(image, code, overlay=str(overlay))
    assert ran.stdout.split() == ["overlay", "packed.rows", str(overlay), str(image / "image/packed/rows.py")]
    assert ran.stderr == f"engram_remote: overlay {overlay} in place of {image}/image/packed/rows.py\n"
    # The staged tree holds what was staged and nothing else.
    assert [path.name for path in overlay.parent.iterdir()] == ["rows.py"]


def test_children_get_it_too(image: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import packed.rows as e; print(e.WHO)'])"
    assert python(image, code, overlay=str(image / "staged/rows.py")).stdout == "overlay\n"


def test_without_the_variable_it_does_nothing(image: Path) -> None:
    code = "import sys, packed.rows as e; print(e.WHO, [type(f).__name__ for f in sys.meta_path])"
    ran = python(image, code, overlay=None)
    assert ran.stdout.startswith("image ")
    assert "Overlay" not in ran.stdout
    assert ran.stderr == ""


def test_an_image_without_the_module_stays_without_it(image: Path) -> None:
    (image / "image/packed/rows.py").unlink()
    ran = python(image, "import packed.rows", overlay=str(image / "staged/rows.py"))
    assert "ModuleNotFoundError" in ran.stderr


@pytest.mark.parametrize(("text", "problem"), [(None, "No such file"), ("WHO = 1\n", "no line"), ("", "no line")])
def test_an_overlay_that_is_none_stops_the_process(image: Path, text: str | None, problem: str) -> None:
    overlay = image / "staged/other.py"
    if text is not None:
        overlay.write_text(text)
    ran = python(image, "print('started')", overlay=str(overlay))
    assert ran.returncode == 78
    assert ran.stdout == ""
    assert str(overlay) in ran.stderr
    assert problem in ran.stderr
    assert "dsv41ctl stage" in ran.stderr


def test_the_sitecustomize_that_it_hides_still_runs(image: Path) -> None:
    (image / "image/sitecustomize.py").write_text("import builtins\nbuiltins.seen = __name__\n")
    ran = python(image, "print(seen); import packed.rows as e; print(e.WHO)", overlay=str(image / "staged/rows.py"))
    assert ran.stdout.split() == ["sitecustomize", "overlay"]
