"""Shows what this node would present to a table server: each layer's identity and what its shard's header says.

Runs on a node with nothing but Python. Exit 0: manifest and shards agree. 3: they do not. 1: a file cannot be read.
"""

import argparse
import hashlib
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PLANES = {"weight": ("F8_E4M3", 256), "scale": ("F8_E8M0", 8)}
INDEX = "model.safetensors.index.json"
MAX_HEADER = 100_000_000
DEFAULT_ROOT = "/root/.cache/dsv41-offload"


class Trouble(Exception):
    """A file is missing or malformed; one line says which and why."""


@dataclass
class Layer:
    """A layer as the manifest describes it, and what was found beside it."""

    layer: int
    rows: int
    head_sizes: list[int]
    identity: str
    recomputed: str
    planes: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def shown(self) -> dict[str, Any]:
        """The layer in the result."""
        return {
            "layer": self.layer,
            "rows": self.rows,
            "identity": self.recomputed,
            "planes": self.planes,
            "problems": self.problems,
        }


def load_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise Trouble(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise Trouble(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise Trouble(f"{path}: not a JSON object")
    return data


def plane_digest(segments: list[str]) -> str:
    """The digest that follows from a plane's segments."""
    return hashlib.sha256(b"".join(bytes.fromhex(one) for one in segments)).hexdigest()


def table_identity(entry: dict[str, Any], segment_bytes: int) -> str:
    """The identity that follows from a layer's entry, from its segments up; what it claims is not looked at."""
    lines = [
        "dsv41-engram-identity-v1",
        f"layer={entry['layer']}",
        f"rows={entry['rows']}",
        f"head_sizes={','.join(str(size) for size in entry['head_sizes'])}",
        f"segment_bytes={segment_bytes}",
    ]
    for name, (dtype, width) in PLANES.items():
        lines.append(f"{name}={dtype}:{width}:{plane_digest(entry[name]['segments'])}")
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode("ascii")).hexdigest()


def shard_plane(model_dir: Path, index: dict[str, Any], tensor: str) -> dict[str, Any]:
    """Where a tensor lies: file, dtype, shape, offset in the file, bytes, size of the file."""
    name = index.get("weight_map", {}).get(tensor)
    if not isinstance(name, str) or "/" in name:
        raise Trouble(f"{model_dir / INDEX}: no shard named for tensor {tensor}")
    path = model_dir / name
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if length > min(MAX_HEADER, size - 8):
                raise Trouble(f"{path}: header of {length} bytes in a file of {size}: truncated or no shard")
            entry = json.loads(file.read(length))[tensor]
        begin, end = entry["data_offsets"]
        found = {"file": name, "dtype": entry["dtype"], "shape": list(entry["shape"]), "offset": 8 + length + begin}
    except OSError as error:
        raise Trouble(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Trouble(f"{path}: tensor {tensor}: header says nothing usable ({error!r})") from error
    return {**found, "bytes": end - begin, "file_size": size}


def read_layer(root: Path, model_dir: Path, entry: dict[str, Any], segment_bytes: int) -> Layer:
    """Compares one layer's manifest entry with the shard's header."""
    try:
        made = table_identity(entry, segment_bytes)
        layer = Layer(entry["layer"], entry["rows"], list(entry["head_sizes"]), entry["identity"], made)
        said = {name: dict(entry[name]) for name in PLANES}
        for name in PLANES:
            if plane_digest(said[name]["segments"]) != said[name]["digest"]:
                layer.problems.append(f"{name}: the manifest's digest is not that of its segments")
    except (KeyError, TypeError, ValueError) as error:
        raise Trouble(f"{root / 'manifest.json'}: a layer's entry is malformed ({error!r})") from error
    if layer.identity != made:
        layer.problems.append(f"identity: the manifest says {layer.identity}, its fields make {made}")
    index = load_json(model_dir / INDEX)
    for name, (dtype, width) in PLANES.items():
        found = shard_plane(model_dir, index, f"layers.{layer.layer}.engram.embed.{name}")
        layer.planes[name] = found
        wanted: dict[str, Any] = {"dtype": dtype, "shape": [layer.rows, width], "bytes": layer.rows * width}
        if not said[name].get("packed"):
            # Packed files are the table host's; where planes lie in them says nothing about a shard.
            wanted |= {"file": said[name]["file"], "offset": said[name]["offset"]}
        for key, value in wanted.items():
            if found[key] != value:
                layer.problems.append(f"{name}.{key}: the shard says {found[key]}, the manifest {value}")
        if found["offset"] + found["bytes"] > found["file_size"]:
            wanted_size = found["offset"] + found["bytes"]
            layer.problems.append(f"{name}: {found['file']} has {found['file_size']} bytes, expected {wanted_size}")
    return layer


def read_layers(root: Path, model_dir: Path, only: list[int] | None = None) -> list[Layer]:
    """All layers of ROOT/manifest.json, or those asked for."""
    manifest = load_json(root / "manifest.json")
    entries = {entry["layer"]: entry for entry in manifest.get("layers", []) if isinstance(entry, dict)}
    segment_bytes = manifest.get("segment_bytes")
    if not isinstance(segment_bytes, int) or not entries:
        raise Trouble(f"{root / 'manifest.json'}: no layers, or no segment_bytes")
    for layer in only or []:
        if layer not in entries:
            raise Trouble(f"{root / 'manifest.json'}: no layer {layer}; it has {sorted(entries)}")
    return [read_layer(root, model_dir, entries[layer], segment_bytes) for layer in only or entries]


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description="What this node would present to a table server.")
    parser.add_argument("--root", type=Path, default=Path(os.environ.get("VLLM_ENGRAM_REMOTE_ROOT", DEFAULT_ROOT)))
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument("--layer", type=int, action="append")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    try:
        layers = read_layers(given.root, given.model_dir, given.layer)
    except Trouble as error:
        print(f"ident: {error}", file=sys.stderr)
        return 1
    ok = not any(layer.problems for layer in layers)
    if given.json:
        print(json.dumps({"ok": ok, "root": str(given.root), "layers": [layer.shown() for layer in layers]}))
    else:
        for layer in layers:
            word = "differs" if layer.problems else "ok"
            print(f"layer={layer.layer} rows={layer.rows} identity={layer.recomputed} {word}")
            for problem in layer.problems:
                print(f"  {problem}")
    return 0 if ok else 3


if __name__ == "__main__":
    sys.exit(main())
