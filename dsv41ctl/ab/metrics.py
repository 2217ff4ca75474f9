"""A serve's /metrics: the few counters that say whether a capture can be trusted. Pure."""

import re
from collections.abc import Callable, Iterator

from pydantic import BaseModel, ConfigDict

__all__ = ["LOOKUPS", "Sample", "judge", "moved", "parse", "quiet_now"]

LOOKUPS = "dsv41_engram_lookups_total"
_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(BaseModel):
    """One reading of /metrics. None: the serve has no such metric."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    running: float | None = None
    waiting: float | None = None
    hits: float | None = None
    queries: float | None = None
    preemptions: float | None = None
    finished: float | None = None
    serve_start: float | None = None
    lookups: dict[str, float] | None = None


def _series(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in text.splitlines():
        match = _LINE.match(line)
        if not match:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        yield match[1], {found[1]: found[2] for found in _LABEL.finditer(match[2] or "")}, value


def parse(text: str | None) -> Sample | None:
    """Reads the Prometheus text form; a metric with labels is summed over them."""
    if text is None:
        return None
    sums: dict[str, float] = {}
    lookups: dict[str, float] = {}
    for name, labels, value in _series(text):
        sums[name] = sums.get(name, 0.0) + value
        if name == LOOKUPS:
            source = labels.get("source", "unknown")
            lookups[source] = lookups.get(source, 0.0) + value
    return Sample(
        running=sums.get("vllm:num_requests_running"),
        waiting=sums.get("vllm:num_requests_waiting"),
        hits=sums.get("vllm:prefix_cache_hits_total"),
        queries=sums.get("vllm:prefix_cache_queries_total"),
        preemptions=sums.get("vllm:num_preemptions_total"),
        finished=sums.get("vllm:request_success_total"),
        serve_start=sums.get("process_start_time_seconds"),
        lookups=lookups or None,
    )


def quiet_now(sample: Sample | None, finished: float | None = None) -> bool:
    """Nothing runs or waits, and at least `finished` requests have been counted, as far as the metrics say."""
    if sample is None:
        return True
    if sample.running or sample.waiting:
        return False
    return finished is None or sample.finished is None or sample.finished >= finished


def judge(before: Sample | None, after: Sample | None, attempts: int) -> list[str]:
    """What stands against trusting one request that took `attempts` attempts. Empty: nothing."""
    if before is None or after is None:
        return ["no /metrics: an idle server and a cold prefix cache are unproven"]
    marks: list[str] = []
    for when, sample in (("before", before), ("after", after)):
        if sample.running is None:
            marks.append(f"no vllm:num_requests_running {when} the request: an idle server is unproven")
        elif sample.running or sample.waiting:
            marks.append(f"busy server {when} the request: {sample.running:g} running, {sample.waiting or 0:g} waiting")
    if before.serve_start != after.serve_start:
        marks.append("the serve was restarted during the request")
        return marks
    _judge_counter(marks, "prefix cache hits", before, after, lambda sample: sample.hits)
    _judge_counter(marks, "preemptions", before, after, lambda sample: sample.preemptions)
    if before.finished is not None and after.finished is not None:
        others = after.finished - before.finished
        # An attempt that failed may or may not have been counted as finished.
        if others > attempts:
            marks.append(f"busy server: {others:g} requests finished where {attempts} were ours")
        elif others < 1:
            marks.append("the serve did not count the request: other clients cannot be ruled out")
    fallback = moved(before, after).get("fallback", 0.0)
    if fallback:
        marks.append(f"mixed rows: {fallback:g} lookups fell back during the request")
    return marks


def _judge_counter(
    marks: list[str], name: str, before: Sample, after: Sample, read: Callable[[Sample], float | None]
) -> None:
    first, last = read(before), read(after)
    if first is None or last is None:
        marks.append(f"{name} unknown: the serve has no such metric")
    elif last != first:
        marks.append(f"{name} moved by {last - first:g}")


def moved(before: Sample | None, after: Sample | None) -> dict[str, float]:
    """How far the Engram lookup counters moved, by source; empty where the serve has none."""
    if before is None or after is None or after.lookups is None:
        return {}
    first = before.lookups or {}
    return {source: value - first.get(source, 0.0) for source, value in sorted(after.lookups.items())}
