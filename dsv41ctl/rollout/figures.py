"""A measurement in the few words of a gate. Pure."""

from dsv41ctl.ab import BenchComparison, BenchRun

__all__ = ["bench_figures", "ratio_figures"]

_WORDS = {"ttft_s": "TTFT", "itl_s": "ITL"}


def bench_figures(run: BenchRun) -> str:
    """Median time to first token and speed of decoding, one request at a time."""
    parts = []
    for cell in run.cells:
        first, decode = cell.median("ttft_s"), cell.median("decode_tok_s")
        if cell.concurrency == 1 and first is not None and decode is not None:
            parts.append(f"{cell.prompt_tokens:,} tokens: TTFT {1000 * first:.0f} ms, decode {decode:.1f} tok/s")
    return "; ".join(parts) or "no request came to its end"


def ratio_figures(comparison: BenchComparison) -> str:
    """Ratios of B by A with their 95 % intervals, one request at a time."""
    parts = []
    for row in comparison.rows:
        if row.concurrency == 1 and row.figure in _WORDS:
            sure = f" ({row.interval[0]:.2f} to {row.interval[1]:.2f})" if row.interval else ""
            parts.append(f"{_WORDS[row.figure]} at {row.prompt_tokens:,} tokens {row.ratio:.2f}{sure}")
    return f"B/A: {', '.join(parts)}" if parts else comparison.verdict
