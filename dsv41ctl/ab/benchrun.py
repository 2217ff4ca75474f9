"""A measurement as data: requests, cells, the whole run, and its file."""

from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from dsv41ctl.ab.distance import quantile
from dsv41ctl.ab.files import write_whole
from dsv41ctl.errors import Inconclusive, UsageError
from dsv41ctl.jsontypes import Json

__all__ = ["FIGURES", "BenchCell", "BenchRequest", "BenchRun", "Figure", "State", "read_bench", "write_bench"]

SCHEMA = 1

Figure = Literal["ttft_s", "itl_s", "prefill_tok_s", "decode_tok_s"]
FIGURES: tuple[Figure, ...] = ("ttft_s", "itl_s", "prefill_tok_s", "decode_tok_s")
State = Literal["clean", "mixed", "unproven"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BenchRequest(_Model):
    """One request.

    Attributes:
        ttft_s: from sending to the first token.
        decode_s: from the first token to the last.
        gaps_s: between streamed pieces.
    """

    prompt_tokens: int
    tokens: int
    ttft_s: float
    decode_s: float
    total_s: float
    gaps_s: list[float]

    def figure(self, name: Figure) -> float | None:
        """One figure, or None where this request has too few tokens for it."""
        if name == "ttft_s":
            return self.ttft_s
        if name == "prefill_tok_s":
            return self.prompt_tokens / self.ttft_s if self.ttft_s > 0 else None
        if self.tokens < 2 or self.decode_s <= 0:
            return None
        return self.decode_s / (self.tokens - 1) if name == "itl_s" else (self.tokens - 1) / self.decode_s


class BenchCell(_Model):
    """All requests of one prompt size and concurrency."""

    prompt_tokens: int
    concurrency: int
    wall_s: float
    retries: int
    requests: list[BenchRequest]

    def values(self, name: Figure) -> list[float]:
        """One figure of every request that has it."""
        return [value for request in self.requests if (value := request.figure(name)) is not None]

    def median(self, name: Figure) -> float | None:
        """Its median."""
        values = self.values(name)
        return median(values) if values else None

    def gap_p99(self) -> float | None:
        """The 99th percentile of the gaps between streamed pieces."""
        gaps = sorted(gap for request in self.requests for gap in request.gaps_s)
        return quantile(gaps, 0.99) if gaps else None

    @property
    def total_tok_s(self) -> float | None:
        """Generated tokens of all requests together, per second."""
        return sum(request.tokens for request in self.requests) / self.wall_s if self.wall_s > 0 else None


class BenchRun(_Model):
    """A whole measurement, schema 1.

    Attributes:
        state: `clean`: no fallbacks; `mixed`: fallbacks moved, so it measured a mix of A and B; `unproven`: unknown.
        counters: how far each counter moved, or None where there are none.
    """

    schema_: int = Field(default=SCHEMA, alias="schema")
    kind: Literal["bench"] = "bench"
    label: str
    url: str
    model: str
    version: str | None
    started: str
    max_tokens: int
    arm: dict[str, JsonValue]
    state: State
    counters: dict[str, float] | None
    warmups: int
    cautions: list[str]
    cells: list[BenchCell]

    def as_json(self) -> dict[str, Json]:
        """The document that `write_bench` writes, with medians beside each cell."""
        document: dict[str, Json] = self.model_dump(mode="json", by_alias=True)
        medians: list[Json] = [
            {
                "prompt_tokens": cell.prompt_tokens,
                "concurrency": cell.concurrency,
                "total_tok_s": cell.total_tok_s,
                "gap_p99_s": cell.gap_p99(),
                **{name: cell.median(name) for name in FIGURES},
            }
            for cell in self.cells
        ]
        return {**document, "medians": medians}


def write_bench(run: BenchRun, path: Path) -> None:
    """Writes a measurement.

    Raises:
        Dsv41Error: the file cannot be written.
    """
    write_whole(path, run.model_dump_json(by_alias=True, indent=1) + "\n")


def read_bench(path: Path) -> BenchRun:
    """Reads a measurement.

    Raises:
        UsageError: no such file.
        Inconclusive: damaged, or of another schema.
    """
    hint = f"dsv41ctl bench run --out {path} ... makes it again"
    try:
        run = BenchRun.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="name a file that `dsv41ctl bench run` wrote") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise Inconclusive(f"{path}: {where}: {first['msg']}", hint=hint) from error
    if run.schema_ != SCHEMA:
        raise Inconclusive(f"{path}: schema {run.schema_}; this version reads schema {SCHEMA}", hint=hint)
    return run
