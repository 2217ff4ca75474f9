"""Where rows lie: head sizes from primes, offsets, and the row range of a rank.

A layer's table is the concatenation of its heads. A head's size is a prime, and all primes of a checkpoint differ.
Ranks own whole heads, so ranges split at head borders: halving the number of rows is wrong.
"""

import bisect
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import accumulate, islice
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dsv41ctl.errors import Dsv41Error, UsageError

__all__ = [
    "ROW_BYTES",
    "SCALE_BYTES",
    "WEIGHT_BYTES",
    "EngramGeometry",
    "ShardRange",
    "is_prime",
    "read_config",
    "read_geometry",
]

WEIGHT_BYTES = 256
SCALE_BYTES = 8
ROW_BYTES = WEIGHT_BYTES + SCALE_BYTES

# Row ids travel as u32, and ids on the GPU are int32.
_MAX_ROWS = 2**31 - 1
# These bases decide primality for every number below 3.3e24.
_BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)


class ShardRange(NamedTuple):
    """The part of one layer's table that a rank owns: heads [head_start, head_end), rows [start, end)."""

    rank: int
    tp: int
    head_start: int
    head_end: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        """Rows in the range."""
        return self.end - self.start


class EngramGeometry(BaseModel):
    """What config.json says about the tables; every size and offset follows from it.

    Attributes:
        layer_ids: layers that have a table, in the order in which primes are handed out.
        num_embeddings: rows of each layer's table.
        max_ngram_size: n-gram orders are 2..max_ngram_size.
        n_heads: heads of each order.
        vocab_size: head sizes are primes from here on.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    layer_ids: tuple[int, ...] = Field(min_length=1)
    num_embeddings: tuple[int, ...] = Field(min_length=1)
    max_ngram_size: int = Field(ge=2, le=16)
    n_heads: int = Field(ge=1, le=256)
    head_dim: int
    vocab_size: int = Field(ge=2)
    pad_token_id: int = Field(ge=0)
    compressed_vocab_size: int = Field(ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.head_dim != WEIGHT_BYTES:
            raise ValueError(f"head_dim is {self.head_dim}; rows of {WEIGHT_BYTES} values are supported")
        if len(set(self.layer_ids)) != len(self.layer_ids) or min(self.layer_ids) < 0:
            raise ValueError(f"layer_ids {list(self.layer_ids)} must be distinct and not negative")
        if len(self.num_embeddings) != len(self.layer_ids):
            raise ValueError(f"num_embeddings has {len(self.num_embeddings)} entries for {len(self.layer_ids)} layers")
        for layer, rows in zip(self.layer_ids, self.num_embeddings, strict=True):
            made = sum(self.head_sizes(layer))
            if made != rows:
                raise ValueError(
                    f"layer {layer}: num_embeddings is {rows}, but the primes from {self.vocab_size} on sum to {made}"
                )
            if rows > _MAX_ROWS:
                raise ValueError(f"layer {layer}: {rows} rows do not fit in int32 row ids")
        return self

    @classmethod
    def make(
        cls,
        *,
        vocab_size: int,
        layer_ids: tuple[int, ...] = (1, 14),
        max_ngram_size: int = 4,
        n_heads: int = 8,
        head_dim: int = WEIGHT_BYTES,
        pad_token_id: int = 2,
        compressed_vocab_size: int = 99092,
    ) -> Self:
        """A geometry whose num_embeddings are computed."""
        sizes = _head_sizes(vocab_size, len(layer_ids), (max_ngram_size - 1) * n_heads)
        return cls(
            layer_ids=layer_ids,
            num_embeddings=tuple(sum(of_layer) for of_layer in sizes),
            max_ngram_size=max_ngram_size,
            n_heads=n_heads,
            head_dim=head_dim,
            vocab_size=vocab_size,
            pad_token_id=pad_token_id,
            compressed_vocab_size=compressed_vocab_size,
        )

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Self:
        """Takes the engram_* keys from `text_config`, or from the top level where there is none.

        Raises:
            Dsv41Error: a key is missing, or the numbers contradict each other.
        """
        inner = config.get("text_config")
        source: Mapping[str, object] = inner if isinstance(inner, dict) else config
        names = {name: f"engram_{name}" for name in cls.model_fields}
        missing = [key for key in names.values() if key not in source]
        if missing:
            raise Dsv41Error(f"no {', '.join(missing)} in the text_config")
        try:
            return cls.model_validate({name: source[key] for name, key in names.items()})
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(f"engram_{part}" if part in names else str(part) for part in first["loc"])
            message = first["msg"].removeprefix("Value error, ")
            raise Dsv41Error(f"{where}: {message}" if where else message) from error

    def to_text_config(self) -> dict[str, object]:
        """The keys of config.json's text_config that describe this geometry."""
        return {f"engram_{name}": value for name, value in self.model_dump(mode="json").items()}

    @property
    def n_hash_cols(self) -> int:
        """Heads of one layer."""
        return (self.max_ngram_size - 1) * self.n_heads

    def _position(self, layer: int) -> int:
        try:
            return self.layer_ids.index(layer)
        except ValueError:
            known = ", ".join(str(known) for known in self.layer_ids)
            raise UsageError(f"layer {layer} has no Engram table; layers {known} have one") from None

    def head_sizes(self, layer: int) -> tuple[int, ...]:
        """Rows of each head, order-major: all heads of the bigrams first."""
        return _head_sizes(self.vocab_size, len(self.layer_ids), self.n_hash_cols)[self._position(layer)]

    def head_offsets(self, layer: int) -> tuple[int, ...]:
        """First row of each head, and the row after the last head."""
        return tuple(accumulate(self.head_sizes(layer), initial=0))

    def rows(self, layer: int) -> int:
        """Rows of the layer's table."""
        return self.num_embeddings[self._position(layer)]

    def head_of(self, layer: int, row: int) -> int:
        """The head that owns a global row id."""
        offsets = self.head_offsets(layer)
        if not 0 <= row < offsets[-1]:
            raise UsageError(f"row {row} is outside layer {layer}'s table [0, {offsets[-1]})")
        return bisect.bisect_right(offsets, row) - 1

    def shard(self, layer: int, rank: int, tp: int) -> ShardRange:
        """The range of one rank.

        Raises:
            UsageError: no such rank, or some rank of this tp would own nothing.
        """
        if tp < 1 or not 0 <= rank < tp:
            raise UsageError(f"rank {rank} of tp {tp} does not exist")
        heads = self.n_hash_cols
        part = -(-heads // tp)
        if (tp - 1) * part >= heads:
            raise UsageError(f"Engram sharding leaves ranks without hash heads: {heads} heads, tp {tp}")
        first, last = rank * part, min(heads, (rank + 1) * part)
        offsets = self.head_offsets(layer)
        return ShardRange(rank, tp, first, last, offsets[first], offsets[last])

    def shards(self, layer: int, tp: int) -> tuple[ShardRange, ...]:
        """The ranges of all ranks."""
        return tuple(self.shard(layer, rank, tp) for rank in range(tp))


def is_prime(number: int) -> bool:
    """Whether a number below 3.3e24 is prime."""
    if number < 2:
        return False
    for base in _BASES:
        if number % base == 0:
            return number == base
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(number, base, odd, twos) for base in _BASES)


def _passes(number: int, base: int, odd: int, twos: int) -> bool:
    power = pow(base, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False


def _primes_from(start: int) -> Iterator[int]:
    number = start
    while True:
        if is_prime(number):
            yield number
        number += 1


@lru_cache(maxsize=64)
def _head_sizes(vocab_size: int, layers: int, columns: int) -> tuple[tuple[int, ...], ...]:
    # The search restarts at vocab_size for every order and skips what was handed out before, in any layer:
    # that is one walk over the primes, cut into layers.
    primes = _primes_from(vocab_size)
    return tuple(tuple(islice(primes, columns)) for _ in range(layers))


def read_config(model_dir: Path) -> dict[str, object]:
    """Reads MODEL_DIR/config.json.

    Raises:
        Dsv41Error: missing, unreadable or not a JSON object.
    """
    path = model_dir / "config.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Dsv41Error(f"{path}: {error.strerror}", hint="pass --model-dir the checkpoint's directory") from error
    except ValueError as error:
        raise Dsv41Error(f"{path}: not JSON: {error}", hint="download config.json again") from error
    if not isinstance(data, dict):
        raise Dsv41Error(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data


def read_geometry(model_dir: Path) -> EngramGeometry:
    """The geometry that MODEL_DIR/config.json describes.

    Raises:
        Dsv41Error: the file, or what it says, is not usable.
    """
    config = read_config(model_dir)
    try:
        return EngramGeometry.from_config(config)
    except Dsv41Error as error:
        raise Dsv41Error(f"{model_dir / 'config.json'}: {error.message}") from error
