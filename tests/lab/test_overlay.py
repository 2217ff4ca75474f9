"""The overlaid engram module: as the image's without the variable (C), and with remote rows the same bits (B)."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from lab_engine import engram
from lab_engine.shards import read_config

from dsv41ctl import assets
from dsv41ctl.lab.layout import IMAGE_ENGRAM, IMAGE_SOURCE
from dsv41ctl.overlay import load_edit_set, render
from tests.lab.conftest import REPO, TEXT, Serve, StartServe, free_port, serves, wait_until
from tests.staging import stage_reader

PY = assets.overlays() / "py"
BUILT = REPO / "build"
PROMPTS = ("short", TEXT[:300], TEXT[:1500])


@dataclass(frozen=True)
class TableServer:
    """A real engram_server with the test checkpoint's tables, on two listeners."""

    process: "subprocess.Popen[bytes]"
    listeners: tuple[str, str]


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rendered overlay, in a directory of its own."""
    path = tmp_path_factory.mktemp("overlay") / "engram.py"
    path.write_bytes(render((IMAGE_SOURCE / IMAGE_ENGRAM).read_bytes(), load_edit_set("lab")).data)
    return path


@pytest.fixture(scope="module")
def stage(model: Path, overlay: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The staged tree, as a node has it."""
    root = tmp_path_factory.mktemp("stage")
    shutil.copy(overlay, stage_reader(root, model / "manifest.json") / "engram.py")
    return root


@pytest.fixture(scope="module")
def table_server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableServer]:
    binary = BUILT / "native/engram_server"
    assert binary.exists(), f"{binary} is missing; run `make native`"
    directory = tmp_path_factory.mktemp("server")
    listeners = (f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
    argv = [str(binary), "serve", "--manifest", str(model / "manifest.json"), "--model-dir", str(model)]
    argv += ["--listen", listeners[0], "--listen", listeners[1], "--control", str(directory / "s"), "--threads", "2"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)
    try:
        ready = [str(binary), "status", "--control", str(directory / "s"), "--wait-ready", "30"]
        done = subprocess.run(ready, check=False, capture_output=True, text=True, timeout=40)
        assert done.returncode == 0, done.stderr + (directory / "log").read_text()
        yield TableServer(process, listeners)
    finally:
        process.kill()
        process.wait()


def _remote(stage: Path, listeners: tuple[str, str], **more: str) -> dict[str, str]:
    return {
        "DSV41_ENGRAM_OVERLAY": str(stage / "offload/engram/spark/engram.py"),
        "VLLM_ENGRAM_REMOTE_ROOT": str(stage),
        "VLLM_ENGRAM_REMOTE": ",".join(f"tcp://{listener}@127.0.0.1" for listener in listeners),
        "VLLM_ENGRAM_REMOTE_REQUIRED": "1",
        "VLLM_ENGRAM_REMOTE_RETRY_MS": "200",
        "VLLM_ENGRAM_REMOTE_LOG_S": "1",
        # Loaded machines are slow; a timeout here would test the machine.
        "VLLM_ENGRAM_REMOTE_TIMEOUT_MS": "5000",
        "TORCH_EXTENSIONS_DIR": str(BUILT / "torch_extensions"),
        "MAX_JOBS": "2",
        **more,
    }


@pytest.fixture(scope="module")
def remote_serve(
    model: Path, stage: Path, table_server: TableServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serve]:
    """One serve in configuration B."""
    with serves(tmp_path_factory.mktemp("serve-b")) as start:
        environment = _remote(stage, table_server.listeners)
        serve = start(model, environment=environment, python_path=(stage / "offload/engram/spark/py",), wait=False)
        # The first start builds the extension.
        serve.wait_ready(280)
        yield serve


def _overlaid(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("overlaid_engram", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_c_is_a_in_the_module(model: Path, overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_ENGRAM_REMOTE", raising=False)
    monkeypatch.setitem(sys.modules, "dsv41_engram_remote", None)
    overlaid = _overlaid(overlay)
    assert (overlaid.configuration(), engram.configuration()) == ("A", "A")
    tokens = np.frombuffer(TEXT[:500].encode(), dtype=np.uint8).astype(np.int64)
    outputs = []
    for module in (engram, overlaid):
        geometry = module.EngramGeometry.from_config(read_config(model))
        ids = torch.from_numpy(module.NgramHash(geometry).ids(tokens, tokens[:0]))
        shares = [
            module.ParallelEngramEmbedding(layer, geometry, rank, 2, model, 512, 2)
            for layer in (1, 14)
            for rank in (0, 1)
        ]
        outputs.append([share.lookup(ids[:, int(share.layer == 14)]).view(torch.int16) for share in shares])
        assert all(share.counters() == {"disk": 1, "remote": 0, "fallback": 0} for share in shares)
        for share in shares:
            share.close()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*outputs, strict=True))


class _Remote:
    """Stands for the reader: a table with its surface whose rows come from the shard."""

    def __init__(self, **asked: object) -> None:
        self.asked = asked
        start, end, rows = asked["row_start"], asked["row_end"], asked["max_rows"]
        self._disk = engram.EngramDiskTable(
            layer=asked["layer"], row_start=start, row_end=end, model_dir=asked["model_dir"], max_rows=rows
        )
        self.staging_weight, self.staging_scale = self._disk.staging_weight, self._disk.staging_scale
        self.enqueue_read, self.wait, self.close = self._disk.enqueue_read, self._disk.wait, self._disk.close

    def stats(self) -> dict[str, int]:
        return {"remote_lookups": int(self._disk.stats()["disk_lookups"]), "fallbacks": 7}


def test_b_opens_the_remote_table(model: Path, overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = ModuleType("dsv41_engram_remote")
    helper.open_remote_table = _Remote  # type: ignore[attr-defined]
    helper.load_engram_remote_ext = lambda: helper  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dsv41_engram_remote", helper)
    monkeypatch.setenv("VLLM_ENGRAM_REMOTE", "tcp://127.0.0.1:1,tcp://127.0.0.1:1")
    overlaid = _overlaid(overlay)
    assert overlaid.configuration() == "B"
    assert overlaid._load_engram_remote_ext() is helper
    geometry = engram.EngramGeometry.from_config(read_config(model))
    tokens = np.arange(60)
    ids = torch.from_numpy(engram.NgramHash(geometry).ids(tokens, tokens[:0]))[:, 1]
    ours = overlaid.ParallelEngramEmbedding(14, geometry, 1, 2, model, 64, 2)
    disk = engram.ParallelEngramEmbedding(14, geometry, 1, 2, model, 64, 2)
    assert ours.table.asked == {
        "layer": 14,
        "shard": 1,
        "row_start": disk.row_start,
        "row_end": disk.row_end,
        "model_dir": model,
        "max_rows": 64 * 12,
        "device": "cpu",
    }
    assert torch.equal(ours.lookup(ids).view(torch.int16), disk.lookup(ids).view(torch.int16))
    assert ours.counters() == {"disk": 0, "remote": 1, "fallback": 7}
    ours.close()
    disk.close()


def test_c_is_a_in_the_serve(serve: Serve, model: Path, overlay: Path, start_serve: StartServe) -> None:
    third = start_serve(model, environment={"DSV41_ENGRAM_OVERLAY": str(overlay)}, python_path=(PY,))
    for rank in (0, 1):
        assert f"engram module {overlay} configuration A " in third.log(rank)
        lines = [line for line in third.log(rank).splitlines() if line.startswith("engram_remote: ")]
        assert lines == [f"engram_remote: overlay {overlay} in place of {IMAGE_SOURCE / IMAGE_ENGRAM}"]
    for prompt in PROMPTS:
        assert third.exact(prompt) == serve.exact(prompt)


def test_without_the_overlay_variable_nothing_changes(serve: Serve, model: Path, start_serve: StartServe) -> None:
    assert (PY / "sitecustomize.py").exists()
    plain = start_serve(model, python_path=(PY,))
    assert f"engram module {IMAGE_SOURCE / IMAGE_ENGRAM} configuration A " in plain.log(0)
    assert plain.exact() == serve.exact()


def test_b_is_a(serve: Serve, remote_serve: Serve, stage: Path) -> None:
    for rank in (0, 1):
        log = remote_serve.log(rank)
        assert f"engram module {stage}/offload/engram/spark/engram.py configuration B " in log
        assert log.count("remote rows from tcp://") == 2
        assert log.count("Engram remote staging (49152 rows)") == 2
    for prompt in PROMPTS:
        assert remote_serve.exact(prompt) == serve.exact(prompt)
    for layer in (1, 14):
        for rank in (0, 1):
            labels = f'dsv41_engram_lookups_total{{layer="{layer}",rank="{rank}",source='
            assert remote_serve.metric(f'{labels}"remote"') > 0
            assert remote_serve.metric(f'{labels}"fallback"') == 0
            assert remote_serve.metric(f'{labels}"disk"') == 0


def test_b_without_its_server_is_still_a(
    serve: Serve, remote_serve: Serve, table_server: TableServer, model: Path, stage: Path, start_serve: StartServe
) -> None:
    # Last in this file: it takes the table server away.
    table_server.process.kill()
    table_server.process.wait()
    for prompt in PROMPTS:
        assert remote_serve.exact(prompt) == serve.exact(prompt)
    assert remote_serve.metric('dsv41_engram_lookups_total{layer="1",rank="0",source="fallback"') > 0
    assert remote_serve.metric('dsv41_engram_lookups_total{layer="14",rank="1",source="fallback"') > 0
    for rank in (0, 1):
        wait_until("a fallback line", lambda rank=rank: "engram_remote: fallback: " in remote_serve.log(rank), 10)
    refused = start_serve(
        model,
        environment=_remote(stage, table_server.listeners),
        python_path=(stage / "offload/engram/spark/py",),
        wait=False,
    )
    assert [process.wait(60) for process in refused.ranks] == [1, 1]
    assert table_server.listeners[0] in refused.log(0)
    statuses, seconds = remote_serve.terminate()
    assert statuses == [0, 0]
    assert seconds < 3
