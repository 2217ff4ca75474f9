"""`dsv41ctl overlay`: what it prints, writes and refuses."""

import hashlib
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dsv41ctl.cli.context import Options
from dsv41ctl.cli.overlay import app
from dsv41ctl.errors import CheckFailed, Dsv41Error, UsageError
from dsv41ctl.lab.layout import IMAGE_ENGRAM, IMAGE_SOURCE
from dsv41ctl.overlay import load_edit_set, render

REPO = Path(__file__).resolve().parents[3]
LAB = IMAGE_SOURCE / IMAGE_ENGRAM
RENDERED = render(LAB.read_bytes(), load_edit_set("lab"))


def run(*argv: str, **options: object) -> str:
    """Stdout of a call that succeeds; the error of one that does not is raised."""
    root = typer.Typer()

    @root.callback()
    def _root(ctx: typer.Context) -> None:
        ctx.obj = Options(**options)  # type: ignore[arg-type]

    root.add_typer(app, name="overlay")
    result = CliRunner().invoke(root, ["overlay", *argv])
    if isinstance(result.exception, Dsv41Error):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_render_prints_the_file() -> None:
    assert run("render") == RENDERED.text
    assert run("render", "--image-file", str(LAB), "--edit-set", "lab") == RENDERED.text


def test_render_writes_once(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "engram.py"
    assert run("render", "--out", str(out), dry_run=True).startswith("would change: ")
    assert not out.exists()
    assert run("render", "--out", str(out)).startswith("changed: ")
    assert out.read_bytes() == RENDERED.data
    data = json.loads(run("render", "--out", str(out), json=True))
    assert (data["step"], data["sha256"]) == ("unchanged", hashlib.sha256(RENDERED.data).hexdigest())


def test_diff_and_json() -> None:
    assert run("diff") == RENDERED.diff
    data = json.loads(run("diff", json=True))
    assert data["diff"] == RENDERED.diff
    assert data["module"] == "lab_engine.engram"


def test_list() -> None:
    assert "lab: module lab_engine.engram" in run("list")
    assert {entry["name"] for entry in json.loads(run("list", json=True))} >= {"lab"}


def test_derive(tmp_path: Path) -> None:
    assert "lab: fits, knows this file" in run("derive", str(LAB))
    other = tmp_path / "engram.py"
    other.write_bytes(LAB.read_bytes() + b"# newer\n")
    with pytest.raises(CheckFailed, match=r"fits .* but does not name its sha256"):
        run("derive", str(other))
    other.write_text("nothing of it")
    with pytest.raises(CheckFailed, match="no edit set fits"):
        run("derive", str(other))
    with pytest.raises(UsageError, match="No such file"):
        run("derive", str(tmp_path / "gone"))


def test_an_image_elsewhere_has_to_be_brought() -> None:
    with pytest.raises(UsageError, match=r"is not on this machine.*--entrypoint cat"):
        run("render", cluster=REPO / "configs/spark.toml")


def test_an_unknown_file_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "engram.py"
    other.write_text("other")
    with pytest.raises(UsageError, match="no edit set knows"):
        run("render", "--image-file", str(other))
    with pytest.raises(CheckFailed, match="was not made for an image file with sha256"):
        run("render", "--image-file", str(other), "--edit-set", "lab")
