"""Seeded weights of the lab's model: everything but the Engram tables."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dsv41ctl.engram.files import atomic_write

__all__ = ["TEXT_CONFIG", "make_weights", "write_weights"]

Array = npt.NDArray[np.float32]

# The recipe's number goes into the shard, so that weights of another recipe are made anew.
RECIPE = "lab-2"
VOCAB = 272
LAYERS = 16
HIDDEN = 128
INTERMEDIATE = 256
HEADS = 2
CONV_TAPS = 4
COLUMNS, HEAD_DIM = 24, 256
# The last one stands after both Engram layers, so that every row reaches every later position.
ATTENTION_LAYERS = (8, 15)

TEXT_CONFIG: dict[str, object] = {
    "architectures": ["LabForCausalLM"],
    "vocab_size": VOCAB,
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 16384,
    "lab_attention_layers": list(ATTENTION_LAYERS),
}

# Spaces and lower-case letters by how common they are, so that greedy text is readable.
_COMMON = " etaoinshrdlucmfwypvbgkjqxz"


def _shapes(engram_layers: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Name, shape and standard deviation of every random tensor, in the order in which they are drawn."""
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN), 1.0
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        if layer in ATTENTION_LAYERS:
            for part in ("q", "k", "v", "out"):
                yield f"{name}.attention.{part}.weight", (HIDDEN, HIDDEN), HIDDEN**-0.5
        else:
            yield f"{name}.conv.taps", (CONV_TAPS, HIDDEN), 0.6
            yield f"{name}.conv.gate.weight", (HIDDEN, HIDDEN), HIDDEN**-0.5
            yield f"{name}.conv.out.weight", (HIDDEN, HIDDEN), HIDDEN**-0.5
        for part in ("up", "gate"):
            yield f"{name}.mlp.{part}.weight", (HIDDEN, INTERMEDIATE), HIDDEN**-0.5
        yield f"{name}.mlp.down.weight", (INTERMEDIATE, HIDDEN), INTERMEDIATE**-0.5
        if layer in engram_layers:
            # Twice the usual size: rows must move the logits more than anything else does.
            yield f"{name}.engram.wv.weight", (COLUMNS * HEAD_DIM, HIDDEN), 2 * (COLUMNS * HEAD_DIM) ** -0.5
    yield "lm_head.weight", (HIDDEN, VOCAB), 1.5 * HIDDEN**-0.5


def make_weights(seed: int, engram_layers: tuple[int, ...]) -> dict[str, Array]:
    """Every dense tensor; the same seed gives the same bytes on every machine."""
    tensors: dict[str, Array] = {}
    source = np.random.SFC64(np.random.SeedSequence((seed, 0x1AB)))
    for name, shape, deviation in _shapes(engram_layers):
        tensors[name] = _draw(source, shape, deviation)
    ones: list[str] = ["model.norm.weight"]
    for layer in range(LAYERS):
        ones += [f"model.layers.{layer}.mix_norm.weight", f"model.layers.{layer}.mlp_norm.weight"]
        if layer in engram_layers:
            ones += [f"model.layers.{layer}.engram.q_weight", f"model.layers.{layer}.engram.k_weight"]
    tensors |= {name: np.ones(HIDDEN, dtype=np.float32) for name in ones}
    tensors["lm_head.bias"] = _bias()
    return tensors


def _draw(source: np.random.SFC64, shape: tuple[int, ...], deviation: float) -> Array:
    # Raw bits alone are the same from one numpy to the next. Four 16-bit uniforms add up to a near-normal number.
    count = int(np.prod(shape))
    raw = source.random_raw(count).astype("<u8", copy=False).view("<u2").reshape(count, 4)
    centred = raw.astype(np.float32).sum(axis=1) - np.float32(2 * 65535)
    scaled: Array = centred * np.float32(deviation / (65536 * (4 / 12) ** 0.5))
    return scaled.reshape(shape)


def _bias() -> Array:
    bias = np.full(VOCAB, -9.0, dtype=np.float32)
    bias[32:127] = -3.0
    for rank, letter in enumerate(_COMMON):
        bias[ord(letter)] = np.float32(1.0 - 0.08 * rank)
    bias[256:] = -16.0
    return bias


def write_weights(path: Path, *, seed: int, engram_layers: tuple[int, ...]) -> bool:
    """Writes the shard of dense weights. False: it was there already, from the same recipe and seed."""
    stamp = f"{RECIPE} seed={seed} layers={','.join(map(str, engram_layers))}"
    if _stamp(path) == stamp:
        return False
    atomic_write(path, _serialize(make_weights(seed, engram_layers), {"dsv41_lab": stamp}))
    return True


def _stamp(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, 1 << 20)))
        end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
        whole = path.stat().st_size == 8 + length + end
        return str(header["__metadata__"]["dsv41_lab"]) if whole else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _serialize(tensors: dict[str, Array], metadata: dict[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": metadata}
    at = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    data = b"".join(tensor.astype("<f4", copy=False).tobytes() for tensor in tensors.values())
    return len(raw).to_bytes(8, "little") + raw + data
