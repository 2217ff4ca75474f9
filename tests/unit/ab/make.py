"""Captures made by hand for comparisons."""

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dsv41ctl.ab.records import Capture, Flags, Footer, Forced, Generated, Header, PromptEntry, PromptRecord

Delta = Callable[[int], float]


def still(_: int) -> float:
    return 0.0


def noisy(seed: int, width: float) -> Delta:
    rng = random.Random(seed)
    return lambda _: rng.gauss(0, width)


def forced(count: int, delta: Delta) -> list[Forced]:
    rows: list[Forced] = []
    for place in range(1, count):
        value = -1.0 - (place % 7) * 0.25 + delta(place)
        rows.append((place % 50, value, 2, [(60, -0.5), (place % 50, value)]))
    return rows


def generated(count: int, delta: Delta, *, flip: int | None = None, end: int | None = None) -> Generated:
    """Greedy tokens; from position `flip` on the second choice wins."""
    tokens, logprobs, tops = [], [], []
    for place in range(count if end is None else end):
        best, second = -0.4 + delta(place), -1.6
        if flip is not None and place >= flip:
            best, second = second, best
        top = [(place, best), (100 + place, second), (300, -3.0)]
        token, value = max(top[:2], key=lambda pair: pair[1])
        tokens.append(token)
        logprobs.append(value)
        tops.append(top)
    return Generated(tokens=tokens, logprobs=logprobs, top=tops)


def record(
    index: int = 0,
    *,
    size: int = 40,
    steps: int = 8,
    delta: Delta = still,
    forced_delta: Delta | None = None,
    flip: int | None = None,
    end: int | None = None,
    marks: Sequence[str] = (),
    text: str = "The clerk opens the ledger.",
) -> PromptRecord:
    answer = generated(steps, delta, flip=flip, end=end)
    return PromptRecord(
        index=index,
        name=str(size),
        sha256=hashlib.sha256(f"{text}{index}".encode()).hexdigest(),
        excerpt=text,
        prompt_tokens=size,
        prompt_ids=[place % 50 for place in range(size)],
        text="-".join(str(token) for token in answer.tokens),
        finish_reason="length",
        system_fingerprint="fake-1",
        generated=answer,
        forced=forced(size, forced_delta or delta),
        salt=f"salt{index}",
        attempts=1,
        seconds=0.5,
        before=None,
        after=None,
        lookups={"disk": 4.0},
        marks=list(marks),
    )


def capture(label: str, *records: PromptRecord, run_id: str | None = None, **header: object) -> Capture:
    flags = Flags(api="completions", max_tokens=8, logprobs=3, prompt_logprobs=1, token_keys="ids", cache_salt=True)
    head = Header(
        schema=1,
        run_id=run_id or label,
        label=label,
        arm={"configuration": label[:1]},
        url="http://serve.test:8001",
        model="tiny",
        system_fingerprint="fake-1",
        version="0.1",
        started="2026-01-01T00:00:00+00:00",
        flags=flags,
        priority=10,
        source="by hand",
        degradations=[],
        prompts=[PromptEntry(name=r.name, size=r.prompt_tokens, sha256=r.sha256, chars=27) for r in records],
    )
    foot = Footer(
        prompts=len(records),
        generated_tokens=sum(len(r.generated.tokens) for r in records),
        prompt_positions=sum(len(r.forced or ()) for r in records),
        requests=len(records),
        retries=0,
        resumed=0,
        seconds=1.0,
        sha256="0" * 64,
    )
    made = Capture(Path(f"{label}.jsonl"), head.model_copy(update=header), tuple(records), foot)
    return replace(made)


def nearly(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-12)
