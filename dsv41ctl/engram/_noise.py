"""Made-up bytes of the planes. The one module of this package that needs numpy."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

__all__ = ["Kind", "noise"]

Kind = Literal["weight", "scale", "any"]
_CHUNK = 8 * 1024 * 1024
# Shared exponents 2^-9 .. 2^-1: rows stay far from the limits of fp8 and bf16.
_SCALE_LOW, _SCALE_HIGH = 118, 126


def noise(size: int, seed: tuple[int, ...], kind: Kind) -> Iterator[memoryview]:
    """Yields `size` bytes that follow from the seed, fit for a plane of that kind."""
    # Raw output of a bit generator is the part of numpy that stays the same from version to version.
    source = np.random.SFC64(np.random.SeedSequence(seed))
    for at in range(0, size, _CHUNK):
        count = min(_CHUNK, size - at)
        raw = source.random_raw(-(-count // 8)).astype("<u8", copy=False).view(np.uint8)[:count]
        yield _fit(raw, kind).data


def _fit(raw: npt.NDArray[np.uint8], kind: Kind) -> npt.NDArray[np.uint8]:
    if kind == "weight":
        # e4m3 has two NaNs, 0x7f and 0xff; they become the largest finite values.
        raw[(raw & np.uint8(0x7F)) == np.uint8(0x7F)] ^= np.uint8(1)
    if kind == "scale":
        raw %= np.uint8(_SCALE_HIGH - _SCALE_LOW + 1)
        raw += np.uint8(_SCALE_LOW)
    return raw
