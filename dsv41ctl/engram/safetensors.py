"""Finds the two planes of a table in a checkpoint: the index, a shard's header, and bounds on everything in them.

Only headers are read. Every problem is one line that names the file, the tensor, what was expected and what was found.
"""

import json
import os
import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO, Literal, NoReturn, TypeGuard

from dsv41ctl.engram.layout import SCALE_BYTES, WEIGHT_BYTES
from dsv41ctl.errors import Dsv41Error

__all__ = [
    "INDEX",
    "PLANES",
    "PlaneName",
    "ShardError",
    "ShardHeader",
    "TensorInfo",
    "layer_planes",
    "locate",
    "plane_spec",
    "plane_tensor",
    "read_header",
    "read_index",
    "shard_path",
]

INDEX = "model.safetensors.index.json"
PlaneName = Literal["weight", "scale"]
PLANES: tuple[PlaneName, PlaneName] = ("weight", "scale")

# The format's own limit; a real header is some 100 KB.
_MAX_HEADER = 100_000_000
_MAX_INDEX = 256_000_000
_PLAIN_NAME = re.compile(r"^[^/\0]+$")
_DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "C64": 64,
}  # fmt: skip


class ShardError(Dsv41Error):
    """A checkpoint file is not what the index, its header or the manifest says.

    Args:
        problem: what is wrong.
        file: the file it is wrong in.
        tensor: the tensor, if one is concerned.
        expected: what should have been there.
        found: what was.
        hint: the command to run next.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: Path,
        tensor: str | None = None,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
    ) -> None:
        parts = [f"{file}: {problem}"]
        if tensor is not None:
            parts.append(f"tensor {tensor}")
        if expected is not None:
            parts.append(f"expected {expected}")
        if found is not None:
            parts.append(f"found {found}")
        super().__init__(", ".join(parts), hint=hint)
        self.problem = problem
        self.file = file
        self.tensor = tensor
        self.expected = expected
        self.found = found


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a shard; `offset` counts from the start of the file."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int

    @property
    def file(self) -> str:
        """The shard's name."""
        return self.path.name


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """A shard's header: its tensors by name, and where their bytes begin."""

    path: Path
    size: int
    data_start: int
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]


def plane_tensor(layer: int, plane: PlaneName) -> str:
    """The checkpoint's name of a plane."""
    return f"layers.{layer}.engram.embed.{plane}"


def plane_spec(plane: PlaneName) -> tuple[str, int]:
    """The dtype and the bytes of a row of a plane."""
    return ("F8_E4M3", WEIGHT_BYTES) if plane == "weight" else ("F8_E8M0", SCALE_BYTES)


def shard_path(model_dir: Path, name: str) -> Path:
    """MODEL_DIR/NAME, for a name that stays inside.

    Raises:
        ShardError: the name has a directory in it.
    """
    if not _PLAIN_NAME.match(name) or name in (".", ".."):
        raise ShardError("a shard's name must be a plain file name", file=model_dir / INDEX, found=repr(name))
    return model_dir / name


def read_index(model_dir: Path) -> dict[str, str]:
    """The index: tensor name -> shard name.

    Raises:
        ShardError: missing or malformed.
    """
    path = model_dir / INDEX
    try:
        if path.stat().st_size > _MAX_INDEX:
            raise ShardError("index too long", file=path, expected=f"at most {_MAX_INDEX} bytes")
        data = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ShardError(
            "index missing", file=path, hint="pass --model-dir the directory that holds the checkpoint's shards"
        ) from error
    except OSError as error:
        raise ShardError(f"cannot read the index: {error.strerror}", file=path) from error
    except (ValueError, RecursionError) as error:
        raise ShardError("index is not JSON", file=path, found=error, hint=_fetch(path)) from error
    table = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise ShardError("index has no weight_map of names", file=path, hint=_fetch(path))
    return table


def read_header(path: Path) -> ShardHeader:
    """Reads and checks a shard's header.

    Raises:
        ShardError: missing, truncated, too long, malformed, or tensors that do not fit in the file.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            raw = _header_bytes(file, path, size)
    except FileNotFoundError as error:
        raise ShardError("missing shard", file=path, hint=_fetch(path)) from error
    except OSError as error:
        raise ShardError(f"cannot read the shard: {error.strerror}", file=path) from error
    try:
        data = json.loads(raw, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise ShardError("header is not JSON", file=path, found=error, hint=_fetch(path)) from error
    if not isinstance(data, dict):
        raise ShardError("header is not a JSON object", file=path, found=type(data).__name__, hint=_fetch(path))
    metadata = data.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise ShardError("__metadata__ is not a JSON object", file=path, hint=_fetch(path))
    start = 8 + len(raw)
    tensors = {name: _tensor(path, size, start, name, entry) for name, entry in data.items()}
    return ShardHeader(path, size, start, tensors, {str(key): str(value) for key, value in metadata.items()})


def locate(model_dir: Path, name: str, *, index: dict[str, str] | None = None) -> TensorInfo:
    """Finds a tensor through the index.

    Raises:
        ShardError: not in the index, or its shard does not have it.
    """
    table = read_index(model_dir) if index is None else index
    if name not in table:
        hint = "pass --model-dir a checkpoint that has Engram tables"
        raise ShardError("tensor missing from the index", file=model_dir / INDEX, tensor=name, hint=hint)
    header = read_header(shard_path(model_dir, table[name]))
    try:
        return header.tensors[name]
    except KeyError:
        problem = "tensor missing from the shard that the index names"
        raise ShardError(problem, file=header.path, tensor=name, hint=_fetch(header.path)) from None


def layer_planes(model_dir: Path, layer: int, rows: int) -> tuple[TensorInfo, TensorInfo]:
    """The weight and the scale plane of a layer, each of the right dtype and shape.

    Raises:
        ShardError: a plane is missing or is something else.
    """
    index = read_index(model_dir)
    weight, scale = (_plane(model_dir, index, layer, plane, rows) for plane in PLANES)
    return weight, scale


def _plane(model_dir: Path, index: dict[str, str], layer: int, plane: PlaneName, rows: int) -> TensorInfo:
    dtype, width = plane_spec(plane)
    info = locate(model_dir, plane_tensor(layer, plane), index=index)
    hint = f"dsv41ctl tables show --model-dir {model_dir}"
    if info.dtype != dtype:
        raise ShardError("wrong dtype", file=info.path, tensor=info.name, expected=dtype, found=info.dtype, hint=hint)
    if info.shape != (rows, width):
        raise ShardError(
            "wrong shape", file=info.path, tensor=info.name, expected=[rows, width], found=list(info.shape), hint=hint
        )
    return info


def _header_bytes(file: BinaryIO, path: Path, size: int) -> bytes:
    prefix = file.read(8)
    if len(prefix) < 8:
        raise ShardError("truncated shard", file=path, expected="at least 8 bytes", found=size, hint=_fetch(path))
    length = int.from_bytes(prefix, "little")
    if length > _MAX_HEADER:
        raise ShardError(
            "header too long", file=path, expected=f"at most {_MAX_HEADER} bytes", found=length, hint=_fetch(path)
        )
    raw = file.read(length)
    if len(raw) < length:
        raise ShardError(
            "truncated shard", file=path, expected=f"a header of {length} bytes", found=len(raw), hint=_fetch(path)
        )
    return raw


def _tensor(path: Path, size: int, start: int, name: str, entry: object) -> TensorInfo:
    def bad(problem: str, expected: object = None, found: object = None) -> NoReturn:
        raise ShardError(problem, file=path, tensor=name, expected=expected, found=found, hint=_fetch(path))

    if not isinstance(entry, dict):
        bad("header entry is not a JSON object")
    dtype: object = entry.get("dtype")
    shape: object = entry.get("shape")
    span: object = entry.get("data_offsets")
    if not isinstance(dtype, str):
        bad("header entry has no dtype", found=repr(dtype))
    if not _is_counts(shape):
        bad("shape is not a list of counts", found=repr(shape))
    if not _is_counts(span) or len(span) != 2 or span[0] > span[1]:
        bad("data_offsets is not [begin, end]", found=repr(span))
    begin, end = span
    if start + end > size:
        bad("truncated shard", expected=f"at least {start + end} bytes", found=size)
    bits = _DTYPE_BITS.get(dtype)
    if bits is not None and (prod(shape) * bits + 7) // 8 != end - begin:
        bad("shape and data_offsets disagree", expected=f"{prod(shape) * bits // 8} bytes", found=end - begin)
    return TensorInfo(name, path, dtype, tuple(shape), start + begin, end - begin)


def _is_counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name stands twice in the header")
    return table


def _fetch(path: Path) -> str:
    return f"fetch {path.name} of the checkpoint again"
