"""Makes small checkpoints: real names, real layout, made-up bytes, the same from the same seed.

A table's shard has a small tensor before and after its planes, so that nobody gets away with assuming their offsets.
The first shard of the set is the caller's, for the rest of a model.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from dsv41ctl.engram.files import atomic_file, atomic_write
from dsv41ctl.engram.hashing import Progress
from dsv41ctl.engram.layout import SCALE_BYTES, WEIGHT_BYTES, EngramGeometry
from dsv41ctl.engram.safetensors import INDEX, ShardError, plane_tensor, read_header
from dsv41ctl.errors import Dsv41Error, UsageError

__all__ = ["first_shard_name", "shard_name", "synth_checkpoint", "write_index"]

# Bump when the bytes made from a seed change.
_RECIPE = "1"
_AROUND = ("before", 1003), ("after", 517)


def shard_name(position: int, layers: int) -> str:
    """The shard of the position-th table (from 0) in a checkpoint with that many tables."""
    return f"model-{position + 2:05d}-of-{layers + 1:05d}.safetensors"


def first_shard_name(layers: int) -> str:
    """The shard that holds everything but tables; the caller's."""
    return f"model-00001-of-{layers + 1:05d}.safetensors"


def synth_checkpoint(
    directory: Path,
    *,
    vocab_size: int = 16000,
    layers: Sequence[int] = (1, 14),
    seed: int = 41,
    extra_text_config: Mapping[str, object] | None = None,
    extra_config: Mapping[str, object] | None = None,
    extra_shard: Callable[[Path], None] | None = None,
    progress: Progress | None = None,
) -> bool:
    """Writes config.json, one shard a table, and the index. Every file moves into place whole.

    Args:
        directory: made if missing.
        vocab_size: engram_vocab_size; a table has about 24 times as many rows.
        layers: layers with a table.
        seed: the same seed, the same bytes.
        extra_text_config: further keys of text_config; `engram_pad_token_id` and `engram_compressed_vocab_size` may be
            among them.
        extra_config: further top-level keys of config.json.
        extra_shard: writes the first shard to the path it is given (before the index is made from all shards).
        progress: told about written bytes.

    Returns:
        Whether anything was written; False when the directory already held exactly this.

    Raises:
        Dsv41Error: the disk refuses, or numpy is missing.
    """
    extra = dict(extra_text_config or {})
    geometry = _geometry(vocab_size, layers, extra)
    total, done = sum(geometry.num_embeddings) * (WEIGHT_BYTES + SCALE_BYTES), 0
    changed = _write_config(directory, {**extra, **geometry.to_text_config()}, dict(extra_config or {}))
    for position, layer in enumerate(geometry.layer_ids):
        path = directory / shard_name(position, len(geometry.layer_ids))
        recipe = f"{_RECIPE} seed={seed} layer={layer} rows={geometry.rows(layer)}"
        if not _is_made(path, recipe):
            changed = True
            with atomic_file(path) as file:
                for written in _write_shard(file, geometry, layer, seed, recipe):
                    if progress:
                        progress(done + written, total)
        done += geometry.rows(layer) * (WEIGHT_BYTES + SCALE_BYTES)
        if progress:
            progress(done, total)
    if extra_shard is not None:
        extra_shard(directory / first_shard_name(len(geometry.layer_ids)))
    return write_index(directory) or changed


def write_index(directory: Path) -> bool:
    """Makes the index anew from the headers of all shards `model-*-of-*.safetensors`. False: it already said so.

    Raises:
        ShardError: a shard cannot be read, or two shards hold the same tensor.
    """
    table: dict[str, str] = {}
    size = 0
    for path in sorted(directory.glob("model-*-of-*.safetensors")):
        for name, info in read_header(path).tensors.items():
            if name in table:
                raise ShardError(f"tensor also in {table[name]}", file=path, tensor=name)
            table[name] = path.name
            size += info.bytes
    data = {"metadata": {"total_size": size}, "weight_map": dict(sorted(table.items()))}
    return _write_json(directory / INDEX, data)


def _geometry(vocab_size: int, layers: Sequence[int], extra: Mapping[str, object]) -> EngramGeometry:
    if vocab_size < 2:
        raise UsageError(f"vocab size {vocab_size} is too small; take 64 or more")
    draft = EngramGeometry.make(vocab_size=vocab_size, layer_ids=tuple(layers))
    keys = ("engram_pad_token_id", "engram_compressed_vocab_size")
    return EngramGeometry.from_config(draft.to_text_config() | {key: extra[key] for key in keys if key in extra})


def _write_config(directory: Path, text_config: dict[str, object], extra: dict[str, object]) -> bool:
    return _write_json(directory / "config.json", {**extra, "text_config": text_config})


def _write_json(path: Path, data: Mapping[str, object]) -> bool:
    raw = (json.dumps(data, indent=2) + "\n").encode()
    if path.is_file() and path.read_bytes() == raw:
        return False
    atomic_write(path, raw)
    return True


def _is_made(path: Path, recipe: str) -> bool:
    # read_header has bounds on every tensor, so a shard that passes is of full length.
    try:
        return read_header(path).metadata.get("dsv41_synth") == recipe
    except ShardError:
        return False


def _write_shard(file: BinaryIO, geometry: EngramGeometry, layer: int, seed: int, recipe: str) -> Iterator[int]:
    """Writes one shard; yields the plane bytes written so far."""
    rows = geometry.rows(layer)
    weight, scale = plane_tensor(layer, "weight"), plane_tensor(layer, "scale")
    before, after = (f"layers.{layer}.engram.synth_{name}" for name, _ in _AROUND)
    entries: dict[str, tuple[str, list[int], int]] = {
        before: ("U8", [_AROUND[0][1]], _AROUND[0][1]),
        weight: ("F8_E4M3", [rows, WEIGHT_BYTES], rows * WEIGHT_BYTES),
        scale: ("F8_E8M0", [rows, SCALE_BYTES], rows * SCALE_BYTES),
        after: ("U8", [_AROUND[1][1]], _AROUND[1][1]),
    }
    file.write(_header(entries, {"dsv41_synth": recipe}))
    written = 0
    for name, (_, _, size) in entries.items():
        for chunk in _bytes_of(name, size, seed, layer):
            file.write(chunk)
            if name in (weight, scale):
                written += len(chunk)
                yield written


def _header(entries: Mapping[str, tuple[str, list[int], int]], metadata: dict[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": metadata}
    at = 0
    for name, (dtype, shape, size) in entries.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw


def _bytes_of(name: str, size: int, seed: int, layer: int) -> Iterator[memoryview]:
    try:
        from dsv41ctl.engram import _noise  # noqa: PLC0415 - numpy is not needed to operate a cluster
    except ModuleNotFoundError as error:
        raise Dsv41Error("making tables needs numpy", hint="pip install 'dsv41ctl[lab]'") from error
    kind: _noise.Kind = (
        "weight" if name.endswith("embed.weight") else "scale" if name.endswith("embed.scale") else "any"
    )
    return _noise.noise(size, (seed, layer, zlib.crc32(name.encode())), kind)
