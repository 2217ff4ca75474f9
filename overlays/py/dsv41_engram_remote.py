"""The reader of remote Engram rows, as the overlay uses it: builds the native module once, and opens tables with it.

Configured by the VLLM_ENGRAM_REMOTE* variables. Needs nothing but torch, a C++20 compiler and the staged tree.
"""

import functools
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import dsv41_engram_build
import torch

__all__ = ["EngramRemoteTable", "Settings", "load_engram_remote_ext", "open_remote_table", "remote_enabled"]

_PREFIX = "VLLM_ENGRAM_REMOTE"
_KNOWN = frozenset(
    f"{_PREFIX}{rest}"
    for rest in ("", "_ROOT", "_TIMEOUT_MS", "_RETRY_MS", "_REQUIRED", "_LOG_S", "_BOUNCE", "_KEY_FILE")
)
_DEFAULT_ROOT = "/root/.cache/dsv41-offload"
# The fallback waits for the NVMe with this many threads at once; they start with the first fallback.
_READ_THREADS = 64


def _log(line: str) -> None:
    print(f"engram_remote: {line}", file=sys.stderr, flush=True)


def remote_enabled() -> bool:
    """Whether this process reads rows from a table server."""
    return bool(os.environ.get(_PREFIX))


def _number(name: str, default: int, least: int, most: int) -> int:
    text = os.environ.get(f"{_PREFIX}_{name}", "")
    if not text:
        return default
    # int() would take "1_000" and Arabic digits as well.
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
        raise ValueError(f"{_PREFIX}_{name}={text!r}: expected a whole number from {least} to {most}")
    return int(text)


@dataclass(frozen=True)
class Settings:
    """The variables; defaults are the seed runbook's.

    Attributes:
        urls: one a rank's Engram head shard.
        timeout_ms: of one lookup, then the local shard answers.
        retry_ms: between two attempts to attach.
        log_s: seconds of traffic between two lines of counters; 0: one at the end.
    """

    urls: tuple[str, ...]
    root: Path
    timeout_ms: int
    retry_ms: int
    required: bool
    log_s: int
    bounce: bool
    key_file: Path | None

    @classmethod
    def from_environment(cls) -> "Settings":
        """Reads them.

        Raises:
            ValueError: a value that is none of its variable's.
        """
        urls = tuple(os.environ.get(_PREFIX, "").split(","))
        if "" in urls:
            raise ValueError(f"{_PREFIX}={','.join(urls)!r}: entry {urls.index('')} is empty")
        key_file = os.environ.get(f"{_PREFIX}_KEY_FILE")
        return cls(
            urls=urls,
            root=Path(os.environ.get(f"{_PREFIX}_ROOT") or _DEFAULT_ROOT),
            timeout_ms=_number("TIMEOUT_MS", 100, 1, 600_000),
            retry_ms=_number("RETRY_MS", 5000, 1, 3_600_000),
            required=bool(_number("REQUIRED", 0, 0, 1)),
            log_s=_number("LOG_S", 60, 0, 86_400),
            bounce=bool(_number("BOUNCE", 0, 0, 1)),
            key_file=Path(key_file) if key_file else None,
        )

    def url_of(self, shard: int) -> str:
        """The URL of a head shard.

        Raises:
            ValueError: there is none for it.
        """
        if not 0 <= shard < len(self.urls):
            raise ValueError(f"{_PREFIX} has {len(self.urls)} entries, none for Engram head shard {shard}")
        return self.urls[shard]

    def key(self) -> bytes:
        """The shared key; empty without a key file.

        Raises:
            ValueError: the file cannot be read, or is empty.
        """
        if self.key_file is None:
            return b""
        try:
            key = self.key_file.read_bytes()
        except OSError as error:
            raise ValueError(f"{_PREFIX}_KEY_FILE={self.key_file}: {error.strerror}") from error
        if not key:
            raise ValueError(f"{_PREFIX}_KEY_FILE={self.key_file}: the file is empty")
        return key


@functools.cache
def _warn_of_unknown_names() -> None:
    """Once a process: a misspelt variable has no effect, and nobody would know."""
    for name in sorted(os.environ):
        if name.startswith(f"{_PREFIX}_") and name not in _KNOWN:
            _log(f"WARNING: {name} is not a variable of the reader and has no effect")


def load_engram_remote_ext() -> ModuleType:
    """The native module, built before if it must be.

    Raises:
        RuntimeError: it cannot be built; the compiler's first words are in the message.
    """
    return dsv41_engram_build.load()


def _tool(name: str) -> Any:
    """A module of the staged tools, which live beside this directory and need no path of their own."""
    path = Path(__file__).resolve().parents[1] / "tools" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"dsv41_{name}", path)
    if spec is None or spec.loader is None or not path.exists():
        raise RuntimeError(f"{path} is missing (stage it: dsv41ctl stage)")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class EngramRemoteTable:
    """Rows [row_start, row_end) of one layer, with the surface of a disk table.

    One lookup may be in flight: enqueue_read() starts it, wait() ends it with the rows in staging, where they stay
    until the next enqueue_read() or read_rows().

    Attributes:
        staging_weight: uint8 [max_rows, 256].
        staging_scale: uint8 [max_rows, 8].
    """

    def __init__(self, native: Any, max_rows: int) -> None:
        self._native = native
        self.max_rows = max_rows
        self.staging_weight = torch.frombuffer(native.weights, dtype=torch.uint8).view(max_rows, -1)
        self.staging_scale = torch.frombuffer(native.scales, dtype=torch.uint8).view(max_rows, -1)

    def enqueue_read(self, ids: torch.Tensor) -> None:
        """Starts the lookup of global row ids [n] (int32 or int64, on the CPU); -1 gives a row of zeros.

        Raises:
            IndexError: an id outside the range; nothing was sent or read.
            ValueError: more than max_rows ids.
            RuntimeError: a lookup is in flight, or the table is closed.
        """
        self._native.enqueue(ids.detach().reshape(-1).contiguous().numpy())

    def wait(self) -> None:
        """Returns when the rows of the last enqueue_read() are in staging.

        Raises:
            RuntimeError: neither the server nor the local shard had them.
        """
        self._native.wait()

    def read_rows(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """enqueue_read() and wait(), with the rows copied out of staging: uint8 [n, 256] and [n, 8]."""
        self.enqueue_read(ids)
        self.wait()
        count = ids.numel()
        return self.staging_weight[:count].clone(), self.staging_scale[:count].clone()

    def stats(self) -> dict[str, Any]:
        """Counts since the table was opened; times in microseconds."""
        return dict(self._native.stats())

    def close(self) -> None:
        """Ends the reader's threads and its connection. Idempotent."""
        self._native.close()


def open_remote_table(
    *,
    layer: int,
    shard: int,
    row_start: int,
    row_end: int,
    model_dir: str | os.PathLike[str],
    max_rows: int,
    device: str = "cpu",
) -> EngramRemoteTable:
    """Opens a rank's share of one layer as the variables say.

    Args:
        layer: as the checkpoint numbers it.
        shard: the rank's Engram head shard; picks its URL.
        row_start: first global row of the share.
        row_end: one past its last.
        model_dir: the checkpoint, whose shard is the fallback.
        max_rows: of one lookup.
        device: where staging is read.

    Raises:
        ValueError: a variable's value, or a device other than "cpu".
        RuntimeError: the local shard is not what the manifest says, or the server is required and not attached.
    """
    if torch.device(device).type != "cpu":
        raise ValueError(f"device {device}: this reader places rows for the CPU")
    _warn_of_unknown_names()
    settings = Settings.from_environment()
    ident = _tool("ident")
    try:
        (found,) = ident.read_layers(settings.root, Path(model_dir), [layer])
    except ident.Trouble as error:
        raise RuntimeError(f"layer {layer} rank {shard}: {error}") from error
    if found.problems:
        # Its fallback would not be the rows that the server has.
        raise RuntimeError(
            f"layer {layer} rank {shard}: the local shard is not the one of the staged manifest: {found.problems[0]} "
            "(compare: dsv41ctl ident)"
        )
    weight, scale = found.planes["weight"], found.planes["scale"]
    native = load_engram_remote_ext().open(
        url=settings.url_of(shard),
        layer=layer,
        rank=shard,
        start=row_start,
        end=row_end,
        rows=found.rows,
        identity=bytes.fromhex(found.recomputed),
        max_rows=max_rows,
        weight_path=str(Path(model_dir) / weight["file"]),
        weight_offset=weight["offset"],
        scale_path=str(Path(model_dir) / scale["file"]),
        scale_offset=scale["offset"],
        timeout_ms=settings.timeout_ms,
        retry_ms=settings.retry_ms,
        required=settings.required,
        log_s=settings.log_s,
        bounce=settings.bounce,
        key=settings.key(),
        read_threads=_READ_THREADS,
        direct_io=True,
    )
    return EngramRemoteTable(native, max_rows)
