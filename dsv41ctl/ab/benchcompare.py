"""`bench compare`: medians of two measurements, their ratio, and how sure it is. Pure."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from dsv41ctl.ab.benchrun import FIGURES, BenchCell, BenchRun, Figure
from dsv41ctl.ab.distance import quantile
from dsv41ctl.errors import UsageError
from dsv41ctl.jsontypes import Json

__all__ = ["BenchComparison", "BenchRow", "compare_bench"]

# With fewer requests a side a resampled median says nothing.
_LEAST = 3
_NAMES: dict[Figure, str] = {
    "ttft_s": "TTFT s",
    "itl_s": "ITL s",
    "prefill_tok_s": "prefill tok/s",
    "decode_tok_s": "decode tok/s",
}


@dataclass(frozen=True)
class BenchRow:
    """One figure of one cell.

    Attributes:
        ratio: median of B by median of A.
        interval: 95 % bootstrap interval of the ratio, None with too few requests.
    """

    prompt_tokens: int
    concurrency: int
    figure: Figure
    requests_a: int
    requests_b: int
    a: float
    b: float
    ratio: float
    interval: tuple[float, float] | None

    def cells(self) -> tuple[str, str, str, str, str]:
        """Figure, A, B, B/A and interval, for a table."""
        shown = f"{self.interval[0]:.3f} to {self.interval[1]:.3f}" if self.interval else "too few requests"
        name = f"{_NAMES[self.figure]}, {self.prompt_tokens} tokens, {self.concurrency} at once"
        return name, f"{self.a:.4g}", f"{self.b:.4g}", f"{self.ratio:.3f}", shown


@dataclass(frozen=True)
class BenchComparison:
    """Two measurements side by side.

    Attributes:
        verdict: `measured`, or `inconclusive` when a run is mixed or unproven, or they measured different things.
        reasons: why it is inconclusive.
    """

    a: str
    b: str
    verdict: str
    reasons: tuple[str, ...]
    rows: tuple[BenchRow, ...]

    def as_json(self) -> dict[str, Json]:
        """Schema 1."""
        rows: list[Json] = [
            {
                "prompt_tokens": row.prompt_tokens,
                "concurrency": row.concurrency,
                "figure": row.figure,
                "requests": [row.requests_a, row.requests_b],
                "a": row.a,
                "b": row.b,
                "ratio": row.ratio,
                "interval": list(row.interval) if row.interval else None,
            }
            for row in self.rows
        ]
        return {
            "schema": 1,
            "kind": "bench-comparison",
            "a": self.a,
            "b": self.b,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "rows": rows,
        }


def compare_bench(a: BenchRun, b: BenchRun, resamples: int = 2000, seed: int = 41) -> BenchComparison:
    """Compares two measurements, cell by cell.

    Args:
        a: the reference.
        b: the other.
        resamples: of the bootstrap; requests are what is resampled.
        seed: of the bootstrap, so that equal inputs give equal intervals.

    Raises:
        UsageError: too few resamples.
    """
    if resamples < 100:
        raise UsageError(f"{resamples} resamples are too few", hint="--resamples 2000")
    rng = random.Random(seed)  # noqa: S311 - resampling, no secret
    others = {(cell.prompt_tokens, cell.concurrency): cell for cell in b.cells}
    rows: list[BenchRow] = []
    unmatched: list[str] = []
    for cell in a.cells:
        other = others.pop((cell.prompt_tokens, cell.concurrency), None)
        if other is None:
            unmatched.append(_name(cell))
            continue
        rows.extend(_rows(cell, other, resamples, rng))
    unmatched.extend(_name(cell) for cell in others.values())
    reasons = list(_reasons(a, b))
    if unmatched:
        reasons.append(f"measured on one side only: {'; '.join(unmatched)}")
    if not rows:
        reasons.append("nothing was measured on both sides")
    verdict = "inconclusive" if reasons else "measured"
    return BenchComparison(a.label, b.label, verdict, tuple(reasons), tuple(rows))


def _name(cell: BenchCell) -> str:
    return f"{cell.prompt_tokens} tokens, {cell.concurrency} at once"


def _reasons(a: BenchRun, b: BenchRun) -> Iterator[str]:
    for run in (a, b):
        if run.state == "mixed":
            yield f"{run.label} is mixed: fallbacks moved during it, so it measured a mix of A and B"
        elif run.state == "unproven":
            yield f"{run.label} is unproven: nothing shows that no rows fell back"
    if a.model != b.model:
        yield f"different models: {a.model} and {b.model}"
    if a.max_tokens != b.max_tokens:
        yield f"different max_tokens: {a.max_tokens} and {b.max_tokens}"


def _rows(a: BenchCell, b: BenchCell, resamples: int, rng: random.Random) -> Iterator[BenchRow]:
    for figure in FIGURES:
        left, right = a.values(figure), b.values(figure)
        # Rounded clocks can make a figure 0 on a very fast serve; there is no ratio then.
        if not left or not right or median(left) <= 0:
            continue
        yield BenchRow(
            prompt_tokens=a.prompt_tokens,
            concurrency=a.concurrency,
            figure=figure,
            requests_a=len(left),
            requests_b=len(right),
            a=median(left),
            b=median(right),
            ratio=median(right) / median(left),
            interval=_interval(left, right, resamples, rng),
        )


def _interval(
    left: Sequence[float], right: Sequence[float], resamples: int, rng: random.Random
) -> tuple[float, float] | None:
    if min(len(left), len(right)) < _LEAST or min(left) <= 0:
        return None
    ratios = sorted(
        median(rng.choices(right, k=len(right))) / median(rng.choices(left, k=len(left))) for _ in range(resamples)
    )
    return quantile(ratios, 0.025), quantile(ratios, 0.975)
