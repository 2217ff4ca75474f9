"""Hashes plane segments in parallel. hashlib and preadv let other threads run, so threads are enough."""

import hashlib
import os
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dsv41ctl.engram.safetensors import PlaneName, ShardError
from dsv41ctl.errors import UsageError

__all__ = ["SEGMENT_BYTES", "Progress", "Segment", "default_threads", "hash_segments", "plane_digest", "segments_of"]

SEGMENT_BYTES = 64 * 1024 * 1024
_BLOCK = 4 * 1024 * 1024


class Progress(Protocol):
    """Told about progress, always from the calling thread."""

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` bytes are finished."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of bytes of one plane; `offset` counts from the start of the file."""

    layer: int
    plane: PlaneName
    index: int
    path: Path
    offset: int
    bytes: int


def default_threads() -> int:
    """As many as the machine has cores, up to 16; past that the disk decides."""
    return min(16, os.cpu_count() or 1)


def plane_digest(segments: Sequence[str]) -> str:
    """A plane's digest: sha256 over its segments' raw digests."""
    return hashlib.sha256(b"".join(bytes.fromhex(digest) for digest in segments)).hexdigest()


def segments_of(
    layer: int, plane: PlaneName, path: Path, offset: int, size: int, segment_bytes: int
) -> Iterator[Segment]:
    """Cuts a plane into segments; the last may be shorter."""
    for index, at in enumerate(range(0, size, segment_bytes)):
        yield Segment(layer, plane, index, path, offset + at, min(segment_bytes, size - at))


def hash_segments(segments: Sequence[Segment], *, threads: int) -> Generator[tuple[Segment, str]]:
    """Yields each segment with its digest as it gets done, in no order. Closing the iterator stops the work.

    Raises:
        ShardError: a file cannot be read, or ends early.
    """
    if threads < 1:
        raise UsageError(f"{threads} threads cannot hash anything; pass --threads 1 or more")
    stop = threading.Event()
    with _Files() as files, ThreadPoolExecutor(threads, thread_name_prefix="hash") as pool:
        waiting = iter(segments)
        running: dict[Future[str], Segment] = {}
        try:
            while True:
                # A short queue, so that stopping is quick.
                while len(running) < 2 * threads and (segment := next(waiting, None)) is not None:
                    running[pool.submit(_hash, files, segment, stop)] = segment
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)


class _Files:
    """File descriptors shared by the threads; closed at the end, after the pool has gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Path, int] = {}
        self._local = threading.local()

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._open.values():
            os.close(handle)

    def handle(self, path: Path) -> int:
        with self._lock:
            if path not in self._open:
                self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return self._open[path]

    def buffer(self) -> memoryview:
        if not hasattr(self._local, "buffer"):
            self._local.buffer = memoryview(bytearray(_BLOCK))
        buffer: memoryview = self._local.buffer
        return buffer


def _hash(files: _Files, segment: Segment, stop: threading.Event) -> str:
    digest = hashlib.sha256()
    buffer = files.buffer()
    at, end = segment.offset, segment.offset + segment.bytes
    try:
        handle = files.handle(segment.path)
        while at < end and not stop.is_set():
            got = os.preadv(handle, [buffer[: min(_BLOCK, end - at)]], at)
            if got == 0:
                raise ShardError(
                    "truncated shard", file=segment.path, tensor=f"layer {segment.layer} {segment.plane}",
                    expected=f"at least {end} bytes", found=at,
                )  # fmt: skip
            digest.update(buffer[:got])
            at += got
    except FileNotFoundError as error:
        raise ShardError("missing shard", file=segment.path) from error
    except OSError as error:
        raise ShardError(f"cannot read at byte {at}: {error.strerror}", file=segment.path) from error
    return digest.hexdigest()
