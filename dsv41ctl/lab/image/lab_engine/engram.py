"""Engram: n-gram hash ids, the table's rows on disk, and a rank's share of the embedding."""

import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lab_engine.shards import Plane, find_plane

ROW_WEIGHT_BYTES = 256
ROW_SCALE_BYTES = 8
QUANT_BLOCK = ROW_WEIGHT_BYTES // ROW_SCALE_BYTES
DEAD_ID = -1

# Rows closer than this are read in one go; a small table then costs few system calls.
_GAP_ROWS = 64
_EXTENT_ROWS = 4096
_DEQUANT_ROWS = 512

_FP8_VALUES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)


def configuration() -> str:
    """Which configuration this module serves: A reads rows from the local shard."""
    return "A"


@dataclass(frozen=True)
class EngramGeometry:
    """What the checkpoint's text_config says about its Engram tables."""

    layer_ids: tuple[int, ...]
    num_embeddings: tuple[int, ...]
    max_ngram_size: int
    n_heads: int
    head_dim: int
    vocab_size: int
    pad_token_id: int
    compressed_vocab_size: int
    head_sizes: tuple[tuple[int, ...], ...]

    @classmethod
    def from_config(cls, config: dict[str, object]) -> "EngramGeometry":
        """Reads the geometry and refuses a table whose rows do not add up to its heads."""
        layer_ids = tuple(int(layer) for layer in config["engram_layer_ids"])
        num_embeddings = tuple(int(rows) for rows in config["engram_num_embeddings"])
        orders = int(config["engram_max_ngram_size"]) - 1
        heads = int(config["engram_n_heads"])
        vocab_size = int(config["engram_vocab_size"])
        head_sizes = _head_sizes(len(layer_ids), orders, heads, vocab_size)
        for layer, rows, sizes in zip(layer_ids, num_embeddings, head_sizes, strict=True):
            if sum(sizes) != rows:
                raise RuntimeError(f"layer {layer}: config.json says {rows} rows, its heads have {sum(sizes)}")
        return cls(
            layer_ids=layer_ids,
            num_embeddings=num_embeddings,
            max_ngram_size=orders + 1,
            n_heads=heads,
            head_dim=int(config["engram_head_dim"]),
            vocab_size=vocab_size,
            pad_token_id=int(config["engram_pad_token_id"]),
            compressed_vocab_size=int(config["engram_compressed_vocab_size"]),
            head_sizes=head_sizes,
        )

    @property
    def columns(self) -> int:
        """Hash columns of one layer, order-major."""
        return (self.max_ngram_size - 1) * self.n_heads

    @property
    def lookback(self) -> int:
        """Earlier tokens that one position's ids depend on."""
        return self.max_ngram_size - 1

    def heads_of_layer(self, layer: int) -> tuple[int, ...]:
        """Rows of each head of one layer."""
        return self.head_sizes[self.layer_ids.index(layer)]


def _is_prime(number: int) -> bool:
    if number < 4:
        return number > 1
    return number % 2 != 0 and all(number % odd for odd in range(3, int(number**0.5) + 1, 2))


def _head_sizes(layers: int, orders: int, heads: int, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """Distinct primes from vocab_size upwards; no prime serves two heads, in whichever layer."""
    seen: set[int] = set()
    result = []
    for _ in range(layers):
        sizes = []
        for _ in range(orders):
            current = vocab_size - 1
            for _ in range(heads):
                current += 1
                while current in seen or not _is_prime(current):
                    current += 1
                seen.add(current)
                sizes.append(current)
        result.append(tuple(sizes))
    return tuple(result)


class NgramHash:
    """Row ids of token n-grams: global within a layer's table, one column a head.

    Ids of a position depend on its token and at most `lookback` tokens before it, so a chunk needs only those.
    """

    def __init__(self, geometry: EngramGeometry) -> None:
        self.geometry = geometry
        bound = (np.iinfo(np.int64).max // geometry.compressed_vocab_size) // 2
        self._layers = []
        for layer, sizes in zip(geometry.layer_ids, geometry.head_sizes, strict=True):
            drawn = np.random.default_rng(10007 * layer).integers(0, bound, geometry.max_ngram_size, dtype=np.int64)
            primes = np.array(sizes, dtype=np.int64)
            offsets = np.concatenate(([0], np.cumsum(primes)[:-1]))
            self._layers.append((2 * drawn + 1, primes, offsets))

    def ids(self, tokens: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Ids [len(tokens), layers, columns] int64; `before` holds the tokens ahead of them, oldest first."""
        geometry = self.geometry
        depth = geometry.lookback
        known = np.asarray(before, dtype=np.int64)[-depth:]
        pad = np.full(depth - len(known), geometry.pad_token_id, dtype=np.int64)
        window = np.concatenate((pad, known, np.asarray(tokens, dtype=np.int64)))
        shifted = [window[depth - shift : len(window) - shift] for shift in range(depth + 1)]
        out = np.empty((len(tokens), len(self._layers), geometry.columns), dtype=np.int64)
        for index, (multipliers, primes, offsets) in enumerate(self._layers):
            mixed = shifted[0] * multipliers[0]
            for order in range(1, depth + 1):
                mixed = mixed ^ (shifted[order] * multipliers[order])
                heads = slice((order - 1) * geometry.n_heads, order * geometry.n_heads)
                out[:, index, heads] = mixed[:, None] % primes[heads] + offsets[heads]
        return out


class EngramDiskTable:
    """Rows [row_start, row_end) of one layer, read from the safetensors shard.

    One read may be in flight: enqueue_read() starts it, wait() ends it with the rows in staging.
    """

    def __init__(
        self, *, layer: int, row_start: int, row_end: int, model_dir: Path, max_rows: int, threads: int = 4
    ) -> None:
        self.layer = layer
        self.row_start = row_start
        self.row_end = row_end
        self.max_rows = max_rows
        weight = find_plane(model_dir, f"layers.{layer}.engram.embed.weight")
        scale = find_plane(model_dir, f"layers.{layer}.engram.embed.scale")
        for plane, dtype, width in ((weight, "F8_E4M3", ROW_WEIGHT_BYTES), (scale, "F8_E8M0", ROW_SCALE_BYTES)):
            if plane.dtype != dtype or plane.shape[1:] != (width,) or plane.shape[0] < row_end:
                raise RuntimeError(
                    f"{plane.path}: layer {layer} needs {dtype} [>={row_end}, {width}], "
                    f"found {plane.dtype} {list(plane.shape)}"
                )
        self._planes = ((weight, ROW_WEIGHT_BYTES), (scale, ROW_SCALE_BYTES))
        self._fds = tuple(os.open(plane.path, os.O_RDONLY | os.O_CLOEXEC) for plane, _ in self._planes)
        self.staging_weight = torch.zeros((max_rows, ROW_WEIGHT_BYTES), dtype=torch.uint8)
        self.staging_scale = torch.zeros((max_rows, ROW_SCALE_BYTES), dtype=torch.uint8)
        self._staging = (self.staging_weight.numpy(), self.staging_scale.numpy())
        self._threads = max(1, threads)
        # One more than the readers: the read that hands work to them also runs here.
        self._pool = ThreadPoolExecutor(self._threads + 1, thread_name_prefix=f"engram-disk-{layer}")
        self._pending: Future[None] | None = None
        self._lock = threading.Lock()
        self._lookups = self._rows = self._bytes = 0
        self._seconds: list[float] = []
        self._closed = False

    def enqueue_read(self, ids: torch.Tensor) -> None:
        """Starts reading rows `ids` [n] into staging rows 0..n."""
        array = self._checked(ids)
        if self._pending is not None:
            raise RuntimeError(f"layer {self.layer}: a read is in flight; wait() for it first")
        self._pending = self._pool.submit(self._read, array, self._staging)

    def wait(self) -> None:
        """Returns when the rows of the last enqueue_read() are in staging."""
        pending, self._pending = self._pending, None
        if pending is None:
            raise RuntimeError(f"layer {self.layer}: wait() without a read in flight")
        pending.result()

    def read_rows(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Reads rows into buffers of their own: ([n, 256], [n, 8]) uint8."""
        array = self._checked(ids)
        weight = torch.empty((len(array), ROW_WEIGHT_BYTES), dtype=torch.uint8)
        scale = torch.empty((len(array), ROW_SCALE_BYTES), dtype=torch.uint8)
        self._read(array, (weight.numpy(), scale.numpy()))
        return weight, scale

    def stats(self) -> dict[str, float]:
        """Counts since the table was opened; times in microseconds."""
        with self._lock:
            times = sorted(self._seconds)
            return {
                "disk_lookups": self._lookups,
                "rows": self._rows,
                "bytes": self._bytes,
                "mean_us": 1e6 * sum(times) / len(times) if times else 0.0,
                "p50_us": 1e6 * times[len(times) // 2] if times else 0.0,
                "max_us": 1e6 * times[-1] if times else 0.0,
            }

    def close(self) -> None:
        """Ends the readers and closes the shard."""
        if self._closed:
            return
        self._closed = True
        self._pool.shutdown(wait=True)
        for fd in self._fds:
            os.close(fd)

    def _checked(self, ids: torch.Tensor) -> np.ndarray:
        if self._closed:
            raise RuntimeError(f"layer {self.layer}: the table is closed")
        array = ids.detach().numpy().astype(np.int64).reshape(-1)
        if len(array) > self.max_rows:
            raise ValueError(f"layer {self.layer}: {len(array)} rows asked for, staging holds {self.max_rows}")
        outside = (array != DEAD_ID) & ((array < self.row_start) | (array >= self.row_end))
        if outside.any():
            raise IndexError(
                f"layer {self.layer}: row id {array[outside][0]} is outside [{self.row_start}, {self.row_end})"
            )
        return array

    def _read(self, ids: np.ndarray, out: tuple[np.ndarray, np.ndarray]) -> None:
        begun = time.perf_counter()
        unique, back = np.unique(ids, return_inverse=True)
        dead = int(len(unique) > 0 and unique[0] == DEAD_ID)
        buffers = tuple(np.zeros((len(unique), width), dtype=np.uint8) for _, width in self._planes)
        jobs = [
            (fd, plane, width, unique, first, last, buffer)
            for fd, (plane, width), buffer in zip(self._fds, self._planes, buffers, strict=True)
            for first, last in _extents(unique, dead)
        ]
        if len(jobs) <= 2:
            for job in jobs:
                _read_extents([job])
        else:
            parts = [jobs[index :: self._threads] for index in range(self._threads)]
            for future in [self._pool.submit(_read_extents, part) for part in parts if part]:
                future.result()
        for staging, buffer in zip(out, buffers, strict=True):
            np.take(buffer, back, axis=0, out=staging[: len(ids)])
        with self._lock:
            self._lookups += 1
            self._rows += len(ids)
            self._bytes += (len(unique) - dead) * (ROW_WEIGHT_BYTES + ROW_SCALE_BYTES)
            self._seconds.append(time.perf_counter() - begun)
            del self._seconds[:-4096]


def _extents(unique: np.ndarray, first: int) -> list[tuple[int, int]]:
    """Splits sorted ids, from index `first` on, into runs [a, b) whose rows lie close together."""
    runs: list[tuple[int, int]] = []
    breaks = np.flatnonzero(np.diff(unique[first:]) > _GAP_ROWS) + first + 1
    for begin, end in zip([first, *breaks.tolist()], [*breaks.tolist(), len(unique)], strict=True):
        at = begin
        while at < end:
            limit = int(np.searchsorted(unique[at:end], unique[at] + _EXTENT_ROWS)) + at
            runs.append((at, limit))
            at = limit
    return runs


def _read_extents(jobs: list[tuple[int, Plane, int, np.ndarray, int, int, np.ndarray]]) -> None:
    for fd, plane, width, unique, first, last, buffer in jobs:
        low, high = int(unique[first]), int(unique[last - 1]) + 1
        block = np.empty((high - low, width), dtype=np.uint8)
        view = memoryview(block).cast("B")
        done = 0
        while done < len(view):
            count = os.preadv(fd, [view[done:]], plane.offset + low * width + done)
            if count == 0:
                raise RuntimeError(f"{plane.path} ends inside rows [{low}, {high})")
            done += count
        buffer[first:last] = block[unique[first:last] - low]


def dequantize(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """fp8 (e4m3) values times 2^(scale - 127), a scale for each 32 of them, as bf16 [n, 256]."""
    out = torch.empty(weight.shape, dtype=torch.bfloat16)
    # Blocks that stay in the cache: at a full batch that is several times faster than one pass over everything.
    for at in range(0, len(weight), _DEQUANT_ROWS):
        block = weight[at : at + _DEQUANT_ROWS]
        # The scale byte is the exponent of a float32 as it stands; byte 0 is zero.
        factor = (scale[at : at + _DEQUANT_ROWS].to(torch.int32) << 23).view(torch.float32)
        values = torch.index_select(_FP8_VALUES, 0, block.reshape(-1).to(torch.int32))
        values = values.view(-1, ROW_SCALE_BYTES, QUANT_BLOCK).mul_(factor[:, :, None])
        out[at : at + _DEQUANT_ROWS] = values.view(-1, ROW_WEIGHT_BYTES)
    return out


class ParallelEngramEmbedding:
    """One rank's share of one layer's table: whole heads, so a contiguous range of rows and of hash columns."""

    def __init__(
        self,
        layer: int,
        geometry: EngramGeometry,
        rank: int,
        tp: int,
        model_dir: Path,
        max_tokens: int,
        disk_threads: int = 4,
    ) -> None:
        sizes = geometry.heads_of_layer(layer)
        self.layer = layer
        self.rank = rank
        self.part = -(-geometry.columns // tp)
        if (tp - 1) * self.part >= geometry.columns:
            raise RuntimeError(f"Engram sharding leaves ranks without hash heads: {geometry.columns} over {tp} ranks")
        self.head_start = rank * self.part
        self.head_end = min(geometry.columns, self.head_start + self.part)
        self.row_start = sum(sizes[: self.head_start])
        self.row_end = sum(sizes[: self.head_end])
        self.max_rows = max_tokens * self.local_heads
        self.table = EngramDiskTable(
            layer=layer,
            row_start=self.row_start,
            row_end=self.row_end,
            model_dir=model_dir,
            max_rows=self.max_rows,
            threads=disk_threads,
        )
        self._tokens = 0
        print(
            f"lab_engine: layer {layer} rank {rank}: Engram table rows [{self.row_start}, {self.row_end}) of "
            f"{sum(sizes)}, {self.local_heads} heads, staging {self.max_rows} rows",
            flush=True,
        )

    @property
    def local_heads(self) -> int:
        """Heads of this rank."""
        return self.head_end - self.head_start

    def enqueue(self, ids: torch.Tensor) -> None:
        """Starts the lookup of global ids [T, columns] for this rank's columns."""
        own = ids[:, self.head_start : self.head_end].contiguous().view(-1)
        self.table.enqueue_read(own)
        self._tokens = len(ids)

    def finish(self) -> torch.Tensor:
        """The rows of the last enqueue(), dequantized: bf16 [T, local_heads, 256]. Dead ids give zeros."""
        self.table.wait()
        count = self._tokens * self.local_heads
        rows = dequantize(self.table.staging_weight[:count], self.table.staging_scale[:count])
        return rows.view(self._tokens, self.local_heads, ROW_WEIGHT_BYTES)

    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        """enqueue() and finish() in one."""
        self.enqueue(ids)
        return self.finish()

    def counters(self) -> dict[str, int]:
        """Lookups so far by where their rows came from."""
        return {"disk": int(self.table.stats()["disk_lookups"]), "remote": 0, "fallback": 0}

    def close(self) -> None:
        """Closes the table."""
        self.table.close()
