"""A small deterministic language model with Engram layers.

The same token at the same position gives the same bits however a prompt is cut into chunks. All arithmetic is done
on tiles of TILE positions that start at multiples of TILE, so every operation has a shape that depends on the tile's
position alone, and a row of a product depends only on its own row. Rows that are not computed now are zero.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional

__all__ = ["TILE", "LabModel", "Sequence"]

TILE = 64
_CONV = 4
_EPSILON = 1e-6


@dataclass(frozen=True)
class Shape:
    """Sizes of the model, as config.json gives them."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    attention_layers: tuple[int, ...]
    max_len: int

    @classmethod
    def from_config(cls, config: dict[str, object]) -> "Shape":
        """Reads the sizes."""
        return cls(
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            intermediate=int(config["intermediate_size"]),
            heads=int(config["num_attention_heads"]),
            attention_layers=tuple(int(layer) for layer in config["lab_attention_layers"]),
            max_len=int(config["max_position_embeddings"]),
        )


class Sequence:
    """What one request has computed so far: keys, values and the inputs that the convolutions look back on."""

    def __init__(self, shape: Shape, tokens: int) -> None:
        rows = (tokens + TILE - 1) // TILE * TILE
        self.length = 0
        self.keys = {layer: torch.zeros(rows, shape.hidden) for layer in shape.attention_layers}
        self.values = {layer: torch.zeros(rows, shape.hidden) for layer in shape.attention_layers}
        mixing = [layer for layer in range(shape.layers) if layer not in shape.attention_layers]
        # _CONV - 1 rows of zeros stand before position 0.
        self.inputs = {layer: torch.zeros(rows + _CONV - 1, shape.hidden) for layer in mixing}


class LabModel:
    """The dense part of the model; Engram rows come in from outside.

    Args:
        config: the checkpoint's text_config.
        weights: its dense tensors, float32.
    """

    def __init__(self, config: dict[str, object], weights: dict[str, torch.Tensor]) -> None:
        self.shape = Shape.from_config(config)
        self.engram_layers = tuple(int(layer) for layer in config["engram_layer_ids"])
        self._w = weights
        half = self.shape.hidden // self.shape.heads // 2
        frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(self.shape.max_len + TILE, dtype=torch.float64)[:, None] * frequency
        self._ahead = torch.ones(TILE, TILE, dtype=torch.bool).triu(1)
        self._cos, self._sin = angle.cos().to(torch.float32), angle.sin().to(torch.float32)

    def forward(
        self, sequence: Sequence, tokens: torch.Tensor, rows: dict[int, torch.Tensor], *, all_logits: bool
    ) -> torch.Tensor:
        """Computes the next len(tokens) positions of a sequence.

        Args:
            sequence: what came before; grows by this call.
            tokens: int64 [n].
            rows: Engram layer -> bf16 [n, columns, head_dim].
            all_logits: logits of every position, else of the last one only.

        Returns:
            float32 [n or 1, VOCAB].
        """
        begin, end = sequence.length, sequence.length + len(tokens)
        parts = []
        for tile in range(begin // TILE, (end + TILE - 1) // TILE):
            low, high = max(begin, tile * TILE), min(end, (tile + 1) * TILE)
            inside = slice(low - tile * TILE, high - tile * TILE)
            chunk = slice(low - begin, high - begin)
            hidden = self._tile(sequence, tile, inside, tokens[chunk], {k: v[chunk] for k, v in rows.items()})
            if all_logits or high == end:
                logits = _norm(hidden, self._w["model.norm.weight"]) @ self._w["lm_head.weight"]
                parts.append((logits + self._w["lm_head.bias"])[inside])
        sequence.length = end
        return torch.cat(parts) if all_logits else parts[-1][-1:]

    def _tile(
        self, sequence: Sequence, tile: int, inside: slice, tokens: torch.Tensor, rows: dict[int, torch.Tensor]
    ) -> torch.Tensor:
        hidden = torch.zeros(TILE, self.shape.hidden)
        hidden[inside] = self._w["model.embed_tokens.weight"][tokens]
        for layer in range(self.shape.layers):
            if layer in rows:
                hidden = hidden + self._engram(layer, hidden, inside, rows[layer])
            name = f"model.layers.{layer}"
            normed = _norm(hidden, self._w[f"{name}.mix_norm.weight"])
            if layer in self.shape.attention_layers:
                hidden = hidden + self._attention(sequence, layer, tile, inside, normed)
            else:
                hidden = hidden + self._convolution(sequence, layer, tile, inside, normed)
            normed = _norm(hidden, self._w[f"{name}.mlp_norm.weight"])
            up = normed @ self._w[f"{name}.mlp.up.weight"]
            gate = functional.silu(normed @ self._w[f"{name}.mlp.gate.weight"])
            hidden = hidden + (gate * up) @ self._w[f"{name}.mlp.down.weight"]
        return hidden

    def _engram(self, layer: int, hidden: torch.Tensor, inside: slice, rows: torch.Tensor) -> torch.Tensor:
        name = f"model.layers.{layer}.engram"
        tile = torch.zeros(TILE, rows.shape[1] * rows.shape[2])
        tile[inside] = _features(rows).view(len(rows), -1)
        value = tile @ self._w[f"{name}.wv.weight"]
        query = _norm(hidden, self._w[f"{name}.q_weight"])
        key = _norm(value, self._w[f"{name}.k_weight"])
        gate = torch.sigmoid((query * key).sum(-1, keepdim=True) / self.shape.hidden**0.5)
        return gate * value

    def _convolution(
        self, sequence: Sequence, layer: int, tile: int, inside: slice, normed: torch.Tensor
    ) -> torch.Tensor:
        name = f"model.layers.{layer}.conv"
        inputs = sequence.inputs[layer]
        first = tile * TILE
        inputs[first + inside.start + _CONV - 1 : first + inside.stop + _CONV - 1] = normed[inside]
        taps = self._w[f"{name}.taps"]
        mixed = inputs[first : first + TILE] * taps[0]
        for tap in range(1, _CONV):
            mixed = mixed + inputs[first + tap : first + tap + TILE] * taps[tap]
        gate = torch.sigmoid(normed @ self._w[f"{name}.gate.weight"])
        return (gate * mixed) @ self._w[f"{name}.out.weight"]

    def _attention(
        self, sequence: Sequence, layer: int, tile: int, inside: slice, normed: torch.Tensor
    ) -> torch.Tensor:
        name = f"model.layers.{layer}.attention"
        heads, size = self.shape.heads, self.shape.hidden // self.shape.heads
        first, last = tile * TILE, (tile + 1) * TILE
        query = self._rotate(normed @ self._w[f"{name}.q.weight"], first)
        key = self._rotate(normed @ self._w[f"{name}.k.weight"], first)
        value = normed @ self._w[f"{name}.v.weight"]
        here = slice(first + inside.start, first + inside.stop)
        sequence.keys[layer][here] = key[inside]
        sequence.values[layer][here] = value[inside]
        # Keys up to the end of the tile, whatever is filled: the shape depends on the tile alone.
        query = (query / size**0.5).view(TILE, heads, size)
        keys = sequence.keys[layer][:last].view(last, heads, size)
        values = sequence.values[layer][:last].view(last, heads, size)
        out = torch.empty(TILE, heads, size)
        for head in range(heads):
            scores = query[:, head] @ keys[:, head].t()
            scores[:, first:].masked_fill_(self._ahead, float("-inf"))
            out[:, head] = torch.softmax(scores, dim=-1) @ values[:, head]
        return out.view(TILE, -1) @ self._w[f"{name}.out.weight"]

    def _rotate(self, flat: torch.Tensor, first: int) -> torch.Tensor:
        heads = self.shape.heads
        low, high = flat.view(TILE, heads, 2, -1).unbind(2)
        cos, sin = self._cos[first : first + TILE, None], self._sin[first : first + TILE, None]
        return torch.stack((low * cos - high * sin, low * sin + high * cos), dim=2).reshape(TILE, -1)


def _features(rows: torch.Tensor) -> torch.Tensor:
    """Signed logarithms of bf16 values, read off their bits: every bit of a row counts, and none outweighs the rest."""
    bits = rows.contiguous().view(torch.int16).to(torch.int32)
    # 2^-23 and below give 0; a value's exponent and mantissa together are its logarithm to the base 2.
    size = (bits & 0x7FFF).to(torch.float32).sub_(104 * 128).clamp_(0, 40 * 128).div_(16 * 128)
    return (size.view(torch.int32) | (bits & -0x80000000)).view(torch.float32)


def _norm(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + _EPSILON) * weight
