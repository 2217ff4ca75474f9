"""Comparisons and measurements for a terminal."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dsv41ctl.ab.benchcompare import BenchComparison
from dsv41ctl.ab.benchrun import BenchRun
from dsv41ctl.ab.comparison import Comparison, PromptComparison
from dsv41ctl.ab.distance import Figures
from dsv41ctl.ab.report import number, percent
from dsv41ctl.ab.settings import CaptureSummary
from dsv41ctl.ab.verdict import Verdict

__all__ = ["bench_comparison_view", "bench_view", "comparison_view", "summary_view"]

_COLOURS = {
    Verdict.IDENTICAL: "green",
    Verdict.WITHIN_FLOOR: "green",
    Verdict.DIFFERENT: "bold red",
    Verdict.INCONCLUSIVE: "yellow",
}


def summary_view(summary: CaptureSummary) -> str:
    """What `ab run` prints at its end."""
    lookups = ", ".join(f"{source} {count:g}" for source, count in summary.lookups.items()) or "not counted"
    lines = [
        f"{summary.path}: {summary.label}, {summary.prompts} prompts, {summary.generated_tokens} generated tokens, "
        f"{summary.prompt_positions} teacher-forced positions",
        f"requests {summary.requests}, retries {summary.retries}, {summary.seconds:g} s; rows from: {lookups}",
        f"sha256 {summary.sha256}",
        *(f"degraded: {line}" for line in summary.degradations),
        *(f"marked: {line}" for line in summary.marks),
    ]
    return "\n".join(lines)


def comparison_view(comparison: Comparison) -> RenderableType:
    """The verdict first, then a table of all prompts, then the rule."""
    verdict = comparison.verdict
    head = Text(verdict.value, style=_COLOURS[verdict])
    parts: list[RenderableType] = [head, *(Text(f"  {reason}") for reason in comparison.reasons)]
    parts += [Text(f"  caution: {caution}", "yellow") for caution in comparison.cautions]
    if comparison.prompts:
        columns = ("prompt", "section", "n", "mean", "p99", "max", "KL", "top-1", "ranks")
        table = _table(f"{_labels(comparison)}: |Δ logprob| of A's token", columns, left=2)
        for prompt in comparison.prompts:
            _add_prompt(table, prompt)
        parts.append(table)
        parts += [line for prompt in comparison.prompts for line in _about(prompt)]
    parts.append(Text(f"rule: {comparison.rule}", style="dim"))
    return Group(*parts)


def _labels(comparison: Comparison) -> str:
    sides = (", ".join(run.label for run in side) for side in (comparison.a, comparison.b))
    return escape(" against ".join(sides))


def _table(title: str, columns: Sequence[str], *, left: int) -> Table:
    """A table that fits 80 columns; the first `left` columns are words."""
    table = Table(title=title, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right", no_wrap=True)
    return table


def _add_prompt(table: Table, prompt: PromptComparison) -> None:
    name = prompt.name
    sections = (
        ("generated", prompt.generated),
        ("  floor", prompt.floor_generated),
        ("forced", prompt.forced),
        ("  floor", prompt.floor_forced),
    )
    for section, figures in sections:
        if figures is not None and (figures.positions or not section.startswith(" ")):
            table.add_row(escape(name), section, *_cells(figures), style="dim" if section.startswith(" ") else None)
            name = ""


def _cells(figures: Figures) -> list[str]:
    return [
        f"{figures.positions}" + (f" ({figures.censored} ≥)" if figures.censored else ""),
        number(figures.mean),
        number(figures.p99),
        number(figures.max),
        number(figures.kl_mean),
        percent(figures.top1_agreement),
        str(figures.rank_changes),
    ]


def _about(prompt: PromptComparison) -> list[Text]:
    lines = [Text(f"prompt {prompt.name}: {prompt.verdict.value}: {prompt.reason}", _COLOURS[prompt.verdict])]
    for pair in (*prompt.ab, *prompt.aa):
        if pair.divergence:
            found = pair.divergence
            a, b = (("(ended)" if token is None else token) for token in (found.token_a, found.token_b))
            lines.append(
                Text(
                    f"prompt {prompt.name}: {pair.a} and {pair.b} part at generated position {found.position}: "
                    f"{a} and {b}, margin {number(found.margin_a)}"
                )
            )
    return lines


def bench_view(run: BenchRun) -> RenderableType:
    """What `bench run` prints."""
    columns = ("prompt", "at once", "n", "TTFT s", "ITL ms", "p99 ms", "prefill/s", "decode/s", "total/s")
    table = _table(escape(f"{run.label}: {run.state}; seconds, milliseconds, tokens a second"), columns, left=0)
    for cell in run.cells:
        itl, itl_p99 = cell.median("itl_s"), cell.gap_p99()
        table.add_row(
            str(cell.prompt_tokens),
            str(cell.concurrency),
            str(len(cell.requests)),
            number(cell.median("ttft_s")),
            number(None if itl is None else itl * 1000),
            number(None if itl_p99 is None else itl_p99 * 1000),
            _rate(cell.median("prefill_tok_s")),
            _rate(cell.median("decode_tok_s")),
            _rate(cell.total_tok_s),
        )
    return Group(table, *(Text(f"caution: {caution}", "yellow") for caution in run.cautions))


def _rate(value: float | None) -> str:
    return number(value) if value is None or value < 100 else f"{value:,.0f}"


def bench_comparison_view(comparison: BenchComparison) -> RenderableType:
    """What `bench compare` prints."""
    title = escape(f"{comparison.a} against {comparison.b}: {comparison.verdict}")
    table = _table(title, ("figure", "A", "B", "B/A", "interval"), left=1)
    for row in comparison.rows:
        table.add_row(*row.cells())
    return Group(table, *(Text(reason, "yellow") for reason in comparison.reasons))
