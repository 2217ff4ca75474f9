import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dsv41ctl import assets
from dsv41ctl.cli import app
from dsv41ctl.cli.context import hoist

Run = Callable[..., Result]


@pytest.fixture
def rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small rooms in place of those that ship, so that their files do not show in golden output."""
    for name in (
        "native/CMakeLists.txt", "native/transport/ofl.h", "native/reader/engram_remote.cpp", "native/table/table.h",
        "native/server/main.cpp", "native/tools/engram_check.cpp", "overlays/py/sitecustomize.py", "overlays/tools/ident.py",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"// {name}\n")
    monkeypatch.setattr(assets, "native", lambda: tmp_path / "native")
    monkeypatch.setattr(assets, "overlays", lambda: tmp_path / "overlays")
    monkeypatch.setenv("DSV41_LAB_ROOT", "/lab")
    monkeypatch.setenv("DSV41_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any connection and any process is a failure."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"offline, but opened {args} {kwargs}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)


@pytest.fixture
def run() -> Run:
    def call(cluster: str | Path, *argv: str, status: int = 0) -> Result:
        path = assets.configs() / cluster if isinstance(cluster, str) else cluster
        result = CliRunner().invoke(app, hoist(["--cluster", str(path), *argv]))
        assert result.exit_code == status, f"{result.output}\n{result.exception!r}"
        return result

    return call


@pytest.fixture
def document(run: Run) -> Callable[..., dict[str, object]]:
    def call(*argv: str, status: int = 0) -> dict[str, object]:
        found = json.loads(run(*argv, "--json", status=status).stdout)
        assert isinstance(found, dict)
        return found

    return call
