"""The plot of |Δ| over position as points of an inline SVG: A-B as a line, the A-A floor as a band under it. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dsv41ctl.ab.comparison import Bucket

__all__ = ["Plot", "plot"]

WIDTH, HEIGHT = 760, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 10, 26
# Changes below this are drawn on the base line, together with zero.
_LEAST = 1e-7


@dataclass(frozen=True)
class Tick:
    """A grid line with its words."""

    at: float
    label: str


@dataclass(frozen=True)
class Plot:
    """Everything that the template draws; points are `x,y x,y ...`."""

    width: int
    height: int
    left: int
    right: int
    top: int
    base: int
    largest: str
    mean: str
    band: str
    rows: tuple[Tick, ...]
    columns: tuple[Tick, ...]
    boundary: float | None


def plot(series: Sequence[Bucket], prompt_tokens: int) -> Plot | None:
    """The plot of one prompt; None when there is nothing to draw. The vertical scale is logarithmic."""
    if not series:
        return None
    start, end = series[0].start, series[-1].end
    values = [value for row in series for value in (row.ab_max, row.ab_mean, row.aa_max) if value]
    high = math.ceil(math.log10(max([*values, _LEAST * 100])))
    low = max(math.floor(math.log10(max(min(values, default=_LEAST), _LEAST))) - 1, high - 8)
    right, base = WIDTH - _RIGHT, HEIGHT - _BOTTOM

    def across(position: float) -> float:
        return round(_LEFT + (position - start) / max(1, end - start) * (right - _LEFT), 1)

    def up(value: float | None) -> float:
        if not value:
            return float(base)
        share = (math.log10(value) - low) / max(1, high - low)
        return round(base - min(1.0, max(0.0, share)) * (base - _TOP), 1)

    def line(points: Sequence[tuple[float, float | None]]) -> str:
        return " ".join(f"{across(x):g},{up(y):g}" for x, y in points)

    middles = [(row.start + row.end) / 2 for row in series]
    floor = [(x, row.aa_max) for x, row in zip(middles, series, strict=True) if row.aa_max is not None]
    band = f"{across(floor[0][0]):g},{base} {line(floor)} {across(floor[-1][0]):g},{base}" if floor else ""
    step = 10 ** math.floor(math.log10(max(1, end - start)))
    if (end - start) / step < 3:
        step = max(1, step // 4)
    first = -(-start // step) * step
    return Plot(
        width=WIDTH,
        height=HEIGHT,
        left=_LEFT,
        right=right,
        top=_TOP,
        base=base,
        largest=line([(x, row.ab_max) for x, row in zip(middles, series, strict=True) if row.ab_max is not None]),
        mean=line([(x, row.ab_mean) for x, row in zip(middles, series, strict=True) if row.ab_mean is not None]),
        band=band,
        rows=tuple(Tick(up(10.0**power), f"1e{power}") for power in range(low + 1, high + 1)),
        columns=tuple(Tick(across(place), f"{place:,}") for place in range(first, end, step)),
        boundary=across(prompt_tokens) if start < prompt_tokens < end else None,
    )
