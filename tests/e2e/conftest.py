"""A lab of its own for the end-to-end tests: own root, own free ports, checkpoint and binaries kept between runs."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@dataclass
class Ran:
    code: int
    out: str
    err: str

    def json(self) -> dict:  # type: ignore[type-arg]
        return json.loads(self.out)


@dataclass
class Lab:
    """One cluster file and the way to call dsv41ctl with it."""

    file: Path
    state: Path
    root: Path

    def __call__(self, *argv: str, timeout: float = 500) -> Ran:
        environment = {
            **os.environ,
            "DSV41_LAB_ROOT": str(self.root),
            "DSV41_STATE_DIR": str(self.state),
            "DSV41_NATIVE_BUILD": str(REPO / "build/native"),
        }
        done = subprocess.run(
            [sys.executable, "-m", "dsv41ctl", "--cluster", str(self.file), "--yes", *argv],
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment,
            cwd=REPO,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def edit(self, edit: Callable[[str], str]) -> None:
        self.file.write_text(edit(self.file.read_text()))

    def server_log(self) -> str:
        return "".join(path.read_text() for path in self.root.glob("hosts/x86host/**/*.log"))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab that is down before and after the test."""
    text = (REPO / "configs/lab.toml").read_text()
    ports = dict(zip(["18001", "18002", "18610", "18611"], free_ports(4), strict=True))
    text = re.sub(r"\b(18001|18002|18610|18611)\b", lambda found: str(ports[found[1]]), text)
    text = text.replace("sizes = [32, 1024, 4096]", "sizes = [32, 512]").replace("max_tokens = 32", "max_tokens = 12")
    text = text.replace("prompt_tokens = [64, 1024]", "prompt_tokens = [64]").replace("requests = 4", "requests = 2")
    file = tmp_path / "lab.toml"
    file.write_text(text)
    one = Lab(file, tmp_path / "state", REPO / "build/test-lab")
    yield one
    down = one("lab", "down")
    assert down.code == 0, down.err
