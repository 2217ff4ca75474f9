"""`ab compare`: are B's outputs A's, by the noise floor that A has against itself? Pure, but for reading the files."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path

from dsv41ctl.ab.capturefile import read_capture
from dsv41ctl.ab.comparison import Bucket, Comparison, PairSummary, PromptComparison, RunInfo
from dsv41ctl.ab.distance import Pair, Section, compare_records, figures
from dsv41ctl.ab.records import Capture
from dsv41ctl.ab.verdict import Verdict, judge_prompt, rule_text, worst
from dsv41ctl.errors import UsageError

__all__ = ["compare", "compare_captures"]

_RANGES = (0, 1024, 8192, 32768, 131072, 1 << 40)
_STEPS = 160


def compare(
    a_paths: Sequence[Path], b_paths: Sequence[Path], floor_factor: float = 1.5, floor_paths: Sequence[Path] = ()
) -> Comparison:
    """Reads the captures and compares them.

    Raises:
        UsageError: a file is missing, or one run stands twice.
        CaptureFileError: a file is damaged or incomplete.
    """
    read = {path: read_capture(path) for path in dict.fromkeys([*a_paths, *b_paths, *floor_paths])}
    a, b, floor = ([read[path] for path in paths] for paths in (a_paths, b_paths, floor_paths))
    return compare_captures(a, b, floor, floor_factor)


def compare_captures(
    a: Sequence[Capture], b: Sequence[Capture], floor: Sequence[Capture] = (), floor_factor: float = 1.5
) -> Comparison:
    """Compares all A captures with all B captures; the floor is all A (and floor) captures among themselves.

    Raises:
        UsageError: no capture on a side, or one and the same run twice.
    """
    if not a or not b:
        raise UsageError("a comparison needs captures on both sides", hint="dsv41ctl ab compare A.jsonl B.jsonl")
    if floor_factor < 1:
        raise UsageError(f"floor factor {floor_factor:g} is below 1", hint="--floor-factor 1.5")
    _refuse_twice([*a, *b], "compared with itself")
    _refuse_twice(floor, "its own floor")
    both = {capture.header.run_id for capture in b} & {capture.header.run_id for capture in floor}
    if both:
        raise UsageError("a B run cannot be part of A's floor", hint="--floor A1.jsonl A2.jsonl")
    known = {capture.header.run_id for capture in a}
    aa = [*a, *(capture for capture in floor if capture.header.run_id not in known)]
    problems = list(_mismatches([*aa, *b]))
    prompts = [] if problems else [_prompt(index, a, b, aa, floor_factor) for index in range(len(a[0].prompts))]
    verdict = Verdict.INCONCLUSIVE if problems else worst([prompt.verdict for prompt in prompts])
    reasons = problems or [f"prompt {prompt.name}: {prompt.reason}" for prompt in prompts if prompt.verdict is verdict]
    if not problems and verdict is Verdict.INCONCLUSIVE and len(aa) < 2:
        reasons.append("give two or more A runs: dsv41ctl ab compare A1 B1 --floor A1 A2")
    return Comparison(
        verdict=verdict,
        reasons=reasons or ["no prompts"],
        cautions=list(_cautions(aa, b)),
        rule=rule_text(floor_factor),
        floor_factor=floor_factor,
        a=[_info(capture) for capture in a],
        b=[_info(capture) for capture in b],
        floor=[_info(capture) for capture in floor],
        prompts=prompts,
    )


def _refuse_twice(captures: Iterable[Capture], how: str) -> None:
    seen: dict[str, Capture] = {}
    for capture in captures:
        # A copy of a file would pass as a run that is identical to the first.
        if earlier := seen.get(capture.header.run_id):
            raise UsageError(f"{earlier.path} and {capture.path} are the same run, {how}", hint="name another run")
        seen[capture.header.run_id] = capture


def _mismatches(captures: Sequence[Capture]) -> Iterator[str]:
    """Why these captures cannot be compared at all."""
    first = captures[0]
    again = "capture both sides with the same options"
    for other in captures[1:]:
        pair = f"{first.path} and {other.path}"
        if other.header.model != first.header.model:
            yield f"{pair}: different models, {first.header.model} and {other.header.model}"
        for name, value in first.header.flags.model_dump().items():
            theirs = getattr(other.header.flags, name)
            if theirs != value:
                yield f"{pair}: different flags, {name} {value} and {theirs} (next: {again})"
        if [entry.sha256 for entry in first.header.prompts] != [entry.sha256 for entry in other.header.prompts]:
            yield f"{pair}: different prompts (next: {again}: --data, --field, --sizes)"
            continue
        for mine, theirs in zip(first.prompts, other.prompts, strict=True):
            # Equal text with other tokens is another tokenizer: positions would not mean the same.
            if (mine.prompt_ids, mine.prompt_tokens) != (theirs.prompt_ids, theirs.prompt_tokens):
                yield f"{pair}: prompt {mine.name} has different tokens"


def _prompt(
    index: int, a: Sequence[Capture], b: Sequence[Capture], aa: Sequence[Capture], factor: float
) -> PromptComparison:
    record = a[0].prompts[index]
    cross = [_pair(left, right, index) for left in a for right in b]
    floor = [_pair(left, right, index) for left, right in combinations(aa, 2)]
    marked = [
        f"{capture.header.label} is marked: {mark}" for capture in [*aa, *b] for mark in capture.prompts[index].marks
    ]
    missing = [
        f"{capture.header.label} has {_forced_count(capture, index)} teacher-forced positions, "
        f"{a[0].header.label} {_forced_count(a[0], index)}"
        for capture in [*aa, *b]
        if _forced_count(capture, index) != _forced_count(a[0], index)
    ]
    verdict, reason = judge_prompt(cross, floor, factor)
    if marked or missing:
        verdict, reason = Verdict.INCONCLUSIVE, "; ".join(marked + missing)
    return PromptComparison(
        index=index,
        name=record.name,
        prompt_tokens=record.prompt_tokens,
        excerpt=record.excerpt,
        verdict=verdict,
        reason=reason,
        generated=figures([pair.generated for pair in cross]),
        forced=figures([pair.forced for pair in cross]),
        floor_generated=figures([pair.generated for pair in floor]) if floor else None,
        floor_forced=figures([pair.forced for pair in floor]) if floor else None,
        ab=[_summary(pair) for pair in cross],
        aa=[_summary(pair) for pair in floor],
        ranges=_buckets(cross, floor, _RANGES),
        series=_buckets(cross, floor, _steps(cross)),
    )


def _pair(left: Capture, right: Capture, index: int) -> Pair:
    return compare_records(left.prompts[index], right.prompts[index], left.header.label, right.header.label)


def _forced_count(capture: Capture, index: int) -> int:
    return len(capture.prompts[index].forced or ())


def _summary(pair: Pair) -> PairSummary:
    return PairSummary(
        pair.a, pair.b, pair.identical, pair.divergence, figures([pair.generated]), figures([pair.forced])
    )


def _steps(pairs: Sequence[Pair]) -> list[int]:
    places = [place for pair in pairs for section in (pair.forced, pair.generated) for place in section.places]
    if not places:
        return [0]
    first, end = min(places), max(places) + 1
    width = max(1, -(-(end - first) // _STEPS))
    return [*range(first, end, width), end]


def _buckets(cross: Sequence[Pair], floor: Sequence[Pair], edges: Sequence[int]) -> list[Bucket]:
    mine, theirs = _by_bucket(cross, edges), _by_bucket(floor, edges)
    rows: list[Bucket] = []
    for place, (start, end) in enumerate(pairwise(edges)):
        ab, aa = mine[place], theirs[place]
        if ab or aa:
            rows.append(Bucket(start, end, _mean(ab), max(ab, default=None), _mean(aa), max(aa, default=None)))
    return rows


def _by_bucket(pairs: Sequence[Pair], edges: Sequence[int]) -> list[list[float]]:
    found: list[list[float]] = [[] for _ in edges]
    for pair in pairs:
        for section in (pair.forced, pair.generated):
            _fill(found, section, edges)
    return found


def _fill(found: list[list[float]], section: Section, edges: Sequence[int]) -> None:
    bucket = 0
    for place, delta in zip(section.places, section.deltas, strict=True):
        while bucket + 1 < len(edges) - 1 and place >= edges[bucket + 1]:
            bucket += 1
        if len(edges) > 1 and edges[0] <= place < edges[-1]:
            found[bucket].append(delta)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _cautions(a: Sequence[Capture], b: Sequence[Capture]) -> Iterator[str]:
    captures = [*a, *b]
    for name, what in (
        ("version", "serve versions"),
        ("system_fingerprint", "engine configurations (system_fingerprint)"),
        ("priority", "priorities"),
    ):
        values = {str(getattr(capture.header, name)) for capture in captures}
        if len(values) > 1:
            yield f"different {what}: {', '.join(sorted(values))}"
    for line in sorted({line for capture in captures for line in capture.header.degradations}):
        yield f"degraded: {line}"
    if any(capture.footer.retries for capture in captures):
        retried = ", ".join(f"{c.header.label} {c.footer.retries}" for c in captures if c.footer.retries)
        yield f"requests were retried: {retried}"
    if any(capture.footer.resumed for capture in captures):
        yield f"resumed runs: {', '.join(c.header.label for c in captures if c.footer.resumed)}"
    ours, theirs = ({source for c in side for source, n in c.lookups.items() if n} for side in (a, b))
    if ours and ours == theirs:
        yield f"A and B took their rows from the same source ({', '.join(sorted(ours))}): is B really B?"


def _info(capture: Capture) -> RunInfo:
    header = capture.header
    return RunInfo(
        label=header.label,
        path=str(capture.path),
        run_id=header.run_id,
        sha256=capture.footer.sha256,
        model=header.model,
        version=header.version,
        system_fingerprint=header.system_fingerprint,
        started=header.started,
        url=header.url,
        source=header.source,
        arm=header.arm,
        requests=capture.footer.requests,
        retries=capture.footer.retries,
        marks=capture.marks,
        degradations=header.degradations,
        lookups=dict(capture.lookups),
    )
