"""What a comparison found: plain data, and its JSON (schema 1)."""

from dataclasses import asdict, dataclass
from typing import cast

from dsv41ctl.ab.distance import Divergence, Figures
from dsv41ctl.ab.verdict import Verdict
from dsv41ctl.jsontypes import Json

__all__ = ["SCHEMA", "Bucket", "Comparison", "PairSummary", "PromptComparison", "RunInfo", "comparison_json"]

SCHEMA = 1


@dataclass(frozen=True)
class RunInfo:
    """One capture, as reports show it."""

    label: str
    path: str
    run_id: str
    sha256: str
    model: str
    version: str | None
    system_fingerprint: str | None
    started: str
    url: str
    source: str
    arm: dict[str, Json]
    requests: int
    retries: int
    marks: list[str]
    degradations: list[str]
    lookups: dict[str, float]


@dataclass(frozen=True)
class PairSummary:
    """Two runs' answers to one prompt."""

    a: str
    b: str
    identical: bool
    divergence: Divergence | None
    generated: Figures
    forced: Figures


@dataclass(frozen=True)
class Bucket:
    """|Δ| over the positions [start, end), prompt and generated text counted on. None: no positions."""

    start: int
    end: int
    ab_mean: float | None
    ab_max: float | None
    aa_mean: float | None
    aa_max: float | None


@dataclass(frozen=True)
class PromptComparison:
    """One prompt.

    Attributes:
        generated: all A-B pairs together, up to and including the first divergence.
        forced: all A-B pairs together, teacher-forced.
        floor_generated: all A-A pairs together; None without a floor.
        ranges: the figures by position, in ranges for reading.
        series: the same in finer steps, for the plot.
    """

    index: int
    name: str
    prompt_tokens: int
    excerpt: str
    verdict: Verdict
    reason: str
    generated: Figures
    forced: Figures
    floor_generated: Figures | None
    floor_forced: Figures | None
    ab: list[PairSummary]
    aa: list[PairSummary]
    ranges: list[Bucket]
    series: list[Bucket]


@dataclass(frozen=True)
class Comparison:
    """The whole comparison.

    Attributes:
        reasons: why the verdict is what it is.
        cautions: what a reader should know though it decides nothing.
    """

    verdict: Verdict
    reasons: list[str]
    cautions: list[str]
    rule: str
    floor_factor: float
    a: list[RunInfo]
    b: list[RunInfo]
    floor: list[RunInfo]
    prompts: list[PromptComparison]


def comparison_json(comparison: Comparison) -> dict[str, Json]:
    """The comparison as a JSON document."""

    def plain(items: list[tuple[str, object]]) -> dict[str, object]:
        return {name: value.value if isinstance(value, Verdict) else value for name, value in items}

    body = cast(dict[str, Json], asdict(comparison, dict_factory=plain))
    return {"schema": SCHEMA, "kind": "ab-comparison", "exit": int(comparison.verdict.exit), **body}
