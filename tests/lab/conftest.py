"""Serves of the lab's image, started for real: two ranks as processes on free ports."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from dsv41ctl.lab.checkpoint import prepare_model
from dsv41ctl.lab.layout import IMAGE_SOURCE

# Tests of the image's modules import them as the serve does.
if str(IMAGE_SOURCE) not in sys.path:
    sys.path.insert(0, str(IMAGE_SOURCE))

REPO = Path(__file__).resolve().parents[2]
TEXT = "The table server answers each lookup with rows, and a row that is wrong shows in every later word. " * 40


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def listening(pid: int) -> list[str]:
    """Addresses that a process listens on."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(fd.readlink()))
    found = []
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, port = fields[1].split(":")
                words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                found.append(f"{socket.inet_ntop(family, b''.join(words))}:{int(port, 16)}")
    return found


def wait_until(what: str, condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


@dataclass
class Serve:
    """The ranks of one serve."""

    url: str
    ranks: list[subprocess.Popen[bytes]]
    logs: list[Path]
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.url, timeout=60.0)

    def log(self, rank: int) -> str:
        return self.logs[rank].read_text()

    def post(self, path: str, **body: object) -> httpx.Response:
        return self.http.post(path, json=body)

    def complete(self, prompt: object = "a prompt", **body: object) -> dict:  # type: ignore[type-arg]
        answer = self.post("/v1/completions", **{"prompt": prompt, "temperature": 0, "max_tokens": 12, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def exact(self, prompt: object = TEXT[:700], **body: object) -> dict:  # type: ignore[type-arg]
        """What must be the same from run to run, of one completion."""
        wanted = {"logprobs": 20, "prompt_logprobs": 5, "return_token_ids": True, "return_tokens_as_token_ids": True}
        choice = self.complete(prompt, **{**wanted, **body})["choices"][0]
        return {key: choice[key] for key in ("text", "token_ids", "logprobs", "prompt_logprobs", "prompt_token_ids")}

    def metric(self, start: str) -> float:
        """The sum of the samples whose name and labels begin so."""
        lines = [line for line in self.http.get("/metrics").text.splitlines() if line.startswith(start)]
        assert lines, start
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def wait_ready(self, seconds: float = 60.0) -> None:
        def ready() -> bool:
            for rank, process in enumerate(self.ranks):
                assert process.poll() is None, self.log(rank)
            with contextlib.suppress(httpx.TransportError):
                return self.http.get("/health").status_code == 200
            return False

        wait_until(f"health of {self.url}", ready, seconds)

    def terminate(self) -> tuple[list[int], float]:
        """SIGTERM to every rank; their exit statuses and the seconds it took."""
        begun = time.monotonic()
        for process in self.ranks:
            process.send_signal(signal.SIGTERM)
        return [process.wait(10) for process in self.ranks], time.monotonic() - begun

    def close(self) -> None:
        self.http.close()
        for process in self.ranks:
            if process.poll() is None:
                process.kill()
                process.wait()


StartServe = Callable[..., Serve]


@contextlib.contextmanager
def serves(logs: Path) -> Iterator[StartServe]:
    """Starts serves and ends those that are left."""
    started: list[Serve] = []

    def start(
        model_dir: Path,
        *flags: str,
        tp: int = 2,
        environment: dict[str, str] | None = None,
        python_path: tuple[Path, ...] = (),
        wait: bool = True,
        only: tuple[int, ...] | None = None,
    ) -> Serve:
        port, master = free_port(), free_port()
        paths = os.pathsep.join(str(path) for path in (*python_path, IMAGE_SOURCE))
        ranks, files = [], []
        for rank in range(tp) if only is None else only:
            file = logs / f"{len(started)}-rank{rank}.log"
            argv = [sys.executable, "-m", "lab_engine.serve", "--model-dir", str(model_dir)]
            argv += ["--rank", str(rank), "--tp", str(tp), "--master-port", str(master), "--port", str(port), *flags]
            with file.open("wb") as out:
                ranks.append(
                    subprocess.Popen(
                        argv,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        env={**_clean_environment(), "PYTHONPATH": paths, **(environment or {})},
                    )
                )
            files.append(file)
        serve = Serve(f"http://127.0.0.1:{port}", ranks, files)
        started.append(serve)
        if wait:
            serve.wait_ready()
        return serve

    try:
        yield start
    finally:
        for serve in started:
            serve.close()


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_ENGRAM_", "DSV41_"))}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint."""
    directory = tmp_path_factory.mktemp("lab") / "model"
    prepare_model(directory, 2000, 41)
    return directory


@pytest.fixture
def start_serve(tmp_path: Path) -> Iterator[StartServe]:
    with serves(tmp_path) as start:
        yield start


@pytest.fixture(scope="session")
def serve(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """One serve in configuration A, shared by tests that only ask."""
    with serves(tmp_path_factory.mktemp("serve")) as start:
        yield start(model)


def events(text: str) -> list[dict]:  # type: ignore[type-arg]
    """The JSON pieces of an SSE stream, whose last line must be [DONE]."""
    pieces = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert pieces[-1] == "[DONE]"
    return [json.loads(piece) for piece in pieces[:-1]]
