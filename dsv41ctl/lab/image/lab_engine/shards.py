"""Reads safetensors checkpoints: the index, the headers, and where each tensor's bytes lie."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

__all__ = ["Plane", "find_plane", "load_dense", "read_config"]

_DTYPES = {"F32": np.float32, "I64": np.int64, "U8": np.uint8}


@dataclass(frozen=True)
class Plane:
    """One tensor's bytes inside a file."""

    path: Path
    offset: int
    bytes: int
    dtype: str
    shape: tuple[int, ...]


def read_config(model_dir: Path) -> dict[str, object]:
    """The checkpoint's text_config."""
    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    return config.get("text_config", config)


def _weight_map(model_dir: Path) -> dict[str, str]:
    index = json.loads((model_dir / "model.safetensors.index.json").read_text(encoding="utf-8"))
    return index["weight_map"]


def _header(path: Path) -> tuple[dict[str, dict[str, object]], int]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(length)), 8 + length


def find_plane(model_dir: Path, name: str) -> Plane:
    """Where the bytes of tensor `name` lie."""
    files = _weight_map(model_dir)
    if name not in files:
        raise RuntimeError(f"{model_dir}/model.safetensors.index.json names no tensor {name}")
    path = model_dir / files[name]
    header, base = _header(path)
    if name not in header:
        raise RuntimeError(f"{path} has no tensor {name}, which the index says it has")
    entry = header[name]
    start, end = entry["data_offsets"]
    if base + end > path.stat().st_size:
        raise RuntimeError(f"{path} ends before tensor {name} does: {path.stat().st_size} < {base + end} bytes")
    return Plane(path, base + start, end - start, entry["dtype"], tuple(entry["shape"]))


def load_dense(model_dir: Path) -> dict[str, torch.Tensor]:
    """The tensors of the dense model."""
    tensors: dict[str, torch.Tensor] = {}
    names = [name for name in _weight_map(model_dir) if name.startswith(("model.", "lm_head."))]
    for name in sorted(names):
        plane = find_plane(model_dir, name)
        array = np.fromfile(
            plane.path, dtype=_DTYPES[plane.dtype], count=int(np.prod(plane.shape)), offset=plane.offset
        )
        tensors[name] = torch.from_numpy(array.reshape(plane.shape)).clone()
    return tensors
