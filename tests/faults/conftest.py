"""The reader on a real table server that can be broken, and the shard's own bytes to compare with."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from dsv41ctl.engram.layout import read_geometry
from dsv41ctl.engram.manifest import load_manifest
from dsv41ctl.lab.checkpoint import prepare_model
from tests.lab.conftest import free_port, wait_until
from tests.staging import stage_reader

REPO = Path(__file__).resolve().parents[2]
LAYER = 14
MAX_ROWS = 4096


class TableServer:
    """An engram_server whose life the test decides."""

    def __init__(self, model: Path, directory: Path) -> None:
        self.model = model
        self.port = free_port()
        self.url = f"tcp://127.0.0.1:{self.port}"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str, model: Path | None = None) -> None:
        binary = REPO / "build/native" / ("engram_server_faults" if more else "engram_server")
        assert binary.exists(), f"{binary} is missing; run `make native`"
        served = model or self.model
        control = str(self._directory / "control")
        argv = [str(binary), "serve", "--manifest", str(served / "manifest.json"), "--model-dir", str(served)]
        argv += ["--listen", f"127.0.0.1:{self.port}", "--control", control, "--threads", "1", *more]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)
        ready = [str(binary), "status", "--control", control, "--wait-ready", "30"]
        done = subprocess.run(ready, check=False, capture_output=True, text=True, timeout=40)
        assert done.returncode == 0, done.stderr + (self._directory / "log").read_text()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if number == signal.SIGSTOP:
            # Its threads stop a moment later, and might answer until then.
            tasks = Path(f"/proc/{self._process.pid}/task")
            wait_until(
                "the server's stop",
                lambda: all(") T " in (task / "stat").read_text() for task in tasks.iterdir()),
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None


@dataclass
class Tally:
    """Rows compared over all tests of this room."""

    compared: int = 0
    wrong: int = 0


@dataclass
class Reader:
    """One rank's table through the reader, beside the shard's bytes."""

    table: "object"
    weights: np.ndarray
    scales: np.ndarray
    start: int
    end: int
    tally: Tally
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(41))
    lookups: int = 0

    def ids(self, count: int = 3000) -> torch.Tensor:
        """Random rows with duplicates and dead ids among them."""
        ids = self.random.integers(self.start, self.end, count)
        ids[:: max(1, count // 50)] = -1
        ids[1 :: max(1, count // 40)] = ids[2]
        ids[-2:] = (self.start, self.end - 1)
        return torch.from_numpy(ids)

    def compare(self, count: int = 3000) -> None:
        """One lookup, every byte."""
        ids = self.ids(count)
        weight, scale = self.table.read_rows(ids)  # type: ignore[attr-defined]
        self.lookups += 1
        live = ids.numpy() >= 0
        rows = np.where(live, ids.numpy(), 0)
        wrong = np.zeros(count, dtype=bool)
        for got, plane in ((weight, self.weights), (scale, self.scales)):
            wrong |= (got.numpy() != np.where(live[:, None], plane[rows], 0)).any(axis=1)
        self.tally.compared += count
        self.tally.wrong += int(wrong.sum())
        assert not wrong.any(), f"rows {ids[torch.from_numpy(wrong)][:5].tolist()} are wrong"

    @property
    def stats(self) -> dict[str, float]:
        found: dict[str, float] = self.table.stats()  # type: ignore[attr-defined]
        # Each lookup was answered once, by one of the two.
        assert found["remote_lookups"] + found["fallbacks"] == self.lookups, found
        return found


OpenReader = Callable[..., Reader]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two checkpoints of one shape with other rows."""
    directory = tmp_path_factory.mktemp("models")
    for name, seed in (("model", 41), ("other", 42)):
        prepare_model(directory / name, 2000, seed)
    return directory / "model", directory / "other"


@pytest.fixture(scope="session")
def stage(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stage")
    stage_reader(root, models[0] / "manifest.json")
    return root


@pytest.fixture
def remote(stage: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The staged module, with the built extension shared between runs."""
    for name in [name for name in os.environ if name.startswith("VLLM_ENGRAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(REPO / "build/torch_extensions"))
    monkeypatch.setenv("MAX_JOBS", "2")
    monkeypatch.setenv("VLLM_ENGRAM_REMOTE_ROOT", str(stage))
    monkeypatch.syspath_prepend(str(stage / "offload/engram/spark/py"))
    import dsv41_engram_remote

    yield dsv41_engram_remote
    for name in ("dsv41_engram_remote", "dsv41_engram_build", "dsv41_ident"):
        sys.modules.pop(name, None)


@pytest.fixture
def server(models: tuple[Path, Path], tmp_path: Path) -> Iterator[TableServer]:
    one = TableServer(models[0], tmp_path)
    yield one
    one.kill()


@pytest.fixture(scope="session")
def tally() -> Tally:
    return Tally()


@pytest.fixture
def open_reader(
    remote: ModuleType,
    server: TableServer,
    models: tuple[Path, Path],
    tally: Tally,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[OpenReader]:
    opened: list[Reader] = []
    layer = next(one for one in load_manifest(models[0] / "manifest.json").layers if one.layer == LAYER)
    planes = [
        np.memmap(models[0] / plane.file, np.uint8, "r", plane.offset, (layer.rows, width))
        for plane, width in ((layer.weight, 256), (layer.scale, 8))
    ]

    def open_one(**variables: object) -> Reader:
        wanted = {"": server.url, "_REQUIRED": 1, "_TIMEOUT_MS": 150, "_RETRY_MS": 100, "_LOG_S": 0}
        for rest, value in {**wanted, **variables}.items():
            monkeypatch.setenv(f"VLLM_ENGRAM_REMOTE{rest}", str(value))
        where = read_geometry(models[0]).shard(LAYER, 0, 1)
        table = remote.open_remote_table(
            layer=LAYER,
            shard=0,
            row_start=where.start,
            row_end=where.end,
            model_dir=models[0],
            max_rows=MAX_ROWS,
        )
        opened.append(Reader(table, planes[0], planes[1], where.start, where.end, tally))
        return opened[-1]

    yield open_one
    for one in opened:
        one.table.close()  # type: ignore[attr-defined]
