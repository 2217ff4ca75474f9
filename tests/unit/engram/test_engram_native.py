"""The same files and the same wire, seen from the native side: engram_check and engram_server as they are built."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engram_files import flip

from dsv41ctl.engram.manifest import Manifest, load_manifest, save_manifest
from dsv41ctl.engram.pack import pack_layer, packed_manifest
from overlays.tools import refusals

REPO = Path(__file__).resolve().parents[3]
BUILD = REPO / "build" / "native"
# The first test may have to compile.
pytestmark = pytest.mark.timeout(1200)


def build(target: str) -> Path:
    """Builds what is out of date; nothing when all is there."""
    if not (BUILD / "build.ninja").exists():
        subprocess.run(["cmake", "-S", REPO / "native", "-B", BUILD, "-G", "Ninja"], check=True, capture_output=True)
    made = subprocess.run(["ninja", "-C", BUILD, "-j2", target], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout[-3000:]
    return BUILD / target


@pytest.fixture(scope="session")
def check_binary() -> Path:
    return build("engram_check")


@pytest.fixture(scope="session")
def server_binary() -> Path:
    return build("engram_server")


Check = Callable[..., tuple[int, str]]


@pytest.fixture
def native_check(check_binary: Path) -> Check:
    def run(mode: str, directory: Path) -> tuple[int, str]:
        argv = [
            check_binary,
            "--mode",
            mode,
            "--manifest",
            directory / "manifest.json",
            "--model-dir",
            directory,
        ]
        done = subprocess.run([*argv, "--json"], capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def test_engram_check_reads_our_manifest(native_check: Check, checkpoint: Path, manifest: Manifest) -> None:
    for mode in ("ident", "verify"):
        status, text = native_check(mode, checkpoint)
        assert status == 0, text
        assert all(identity in text for identity in manifest.identities.values())


def test_engram_check_reads_our_packed_files(
    native_check: Check, checkpoint: Path, manifest: Manifest, tmp_path: Path
) -> None:
    out = tmp_path / "packed"
    for layer in (1, 14):
        pack_layer(manifest, checkpoint, layer, out)
    save_manifest(packed_manifest(manifest), out / "manifest.json")
    status, text = native_check("verify", out)
    assert status == 0, text
    assert load_manifest(out / "manifest.json").identities == manifest.identities


def test_engram_check_finds_the_same_damage(native_check: Check, checkpoint: Path, manifest: Manifest) -> None:
    plane = manifest.table(14).weight
    flip(checkpoint / plane.file, plane.offset + 65536)
    status, text = native_check("verify", checkpoint)
    assert status == 3, text
    assert plane.file in text


@pytest.fixture
def serve(server_binary: Path, checkpoint: Path, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts the real server on a port of its own; returns its URL once it is ready."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*more: object) -> str:
        control, log = tmp_path / "control", tmp_path / "server.log"
        argv = [
            server_binary,
            "serve",
            "--manifest",
            checkpoint / "manifest.json",
            "--model-dir",
            checkpoint,
        ]
        rest = [
            "--listen",
            "127.0.0.1:0",
            "--control",
            control,
            "--threads",
            "2",
            "--no-huge-pages",
            "--log",
            log,
            *more,
        ]
        running.append(subprocess.Popen([str(word) for word in [*argv, *rest]]))
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            assert running[-1].poll() is None, log.read_text()
            argv = [server_binary, "status", "--control", control, "--json", "--wait-ready", "10"]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
            if done.returncode == 0 and (state := json.loads(done.stdout))["ready"]:
                (listener,) = state["listeners"]
                assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", listener)
                return f"tcp://{listener}@127.0.0.1"
            time.sleep(0.05)
        raise AssertionError(f"not ready: {log.read_text()}")

    yield start
    for process in running:
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def target(url: str, checkpoint: Path, manifest: Manifest, layer: int, rank: int, key: bytes = b"") -> refusals.Target:
    table, shard = manifest.table(layer), manifest.geometry.shard(layer, rank, 2)
    parts = []
    for plane, width in ((table.weight, 256), (table.scale, 8)):
        with (checkpoint / plane.file).open("rb") as file:
            file.seek(plane.offset + shard.start * width)
            parts.append(file.read(width))
    identity = bytes.fromhex(table.identity)
    return refusals.Target(url, layer, shard.start, shard.end, table.rows, identity, b"".join(parts), key)


def test_the_server_refuses_all_twelve_kinds_and_goes_on(
    serve: Callable[..., str], checkpoint: Path, manifest: Manifest
) -> None:
    url = serve()
    for layer, rank in ((1, 0), (14, 1)):
        found = refusals.try_refusals(target(url, checkpoint, manifest, layer, rank))
        assert (found["tried"], found["right"]) == (12, 12), found["details"]


def test_every_row_over_the_wire(serve: Callable[..., str], checkpoint: Path, manifest: Manifest) -> None:
    url = serve()
    wanted = target(url, checkpoint, manifest, 14, 1)
    table = manifest.table(14)
    raw = (checkpoint / table.weight.file).read_bytes()
    with refusals.Wire(wanted) as wire:
        wire.hello()
        wire.open(max_rows=1000)
        for first in range(wanted.start, wanted.end, 1000):
            ids = list(range(first, min(wanted.end, first + 1000)))
            for row, got in zip(ids, wire.lookup(ids, first), strict=True):
                weight = raw[table.weight.offset + row * 256 :][:256]
                assert got == weight + raw[table.scale.offset + row * 8 :][:8], row


def test_a_key_is_needed_on_both_sides(
    serve: Callable[..., str], checkpoint: Path, manifest: Manifest, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    url = serve("--key-file", key)
    found = refusals.try_refusals(target(url, checkpoint, manifest, 1, 1, key.read_bytes()))
    assert found["right"] == 12, found["details"]
    with pytest.raises(refusals.Contradiction, match="-106"):
        refusals.try_refusals(target(url, checkpoint, manifest, 1, 1, b"x" * 32))
    with pytest.raises(refusals.Unavailable, match="wants a key"):
        refusals.try_refusals(target(url, checkpoint, manifest, 1, 1))
