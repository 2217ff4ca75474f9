from pathlib import Path

import pytest

from dsv41ctl import assets
from dsv41ctl.config import Cluster, load_cluster


@pytest.fixture
def spark() -> Cluster:
    return load_cluster(assets.configs() / "spark.toml")


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("DSV41_LAB_ROOT", "/lab")
    return load_cluster(assets.configs() / "lab.toml")


@pytest.fixture
def rooms(tmp_path: Path) -> tuple[Path, Path]:
    """A small native/ and overlays/."""
    native, overlays = tmp_path / "native", tmp_path / "overlays"
    for name in (
        "CMakeLists.txt", "transport/ofl.h", "transport/ofl.cpp", "transport/ofl_server.h", "transport/tcp_server.cpp",
        "transport/API.md", "reader/remote_table.h", "reader/engram_remote.cpp", "table/table.cpp", "server/main.cpp",
        "tools/engram_check.cpp", "tests/transport_tcp.cpp", "fuzz/frame.cpp",
    ):  # fmt: skip
        (native / name).parent.mkdir(parents=True, exist_ok=True)
        (native / name).write_text(f"// {name}\n")
    for name in ("py/sitecustomize.py", "py/dsv41_engram_remote.py", "tools/verify_rows.py", "tools/__pycache__/x.pyc"):
        (overlays / name).parent.mkdir(parents=True, exist_ok=True)
        (overlays / name).write_text(f"# {name}\n")
    return native, overlays
