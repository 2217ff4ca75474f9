"""`bench run`: times to first token and between tokens by streaming, at given prompt sizes and concurrency."""

import dataclasses
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Self, TypedDict, Unpack

from dsv41ctl.ab.benchrun import BenchCell, BenchRequest, BenchRun, State
from dsv41ctl.ab.capabilities import choose_model
from dsv41ctl.ab.capturing import quiet, settle
from dsv41ctl.ab.client import Body, Serve, ServeError, ServeRefused
from dsv41ctl.ab.prompts import Builtin, fit_exactly, fit_roughly
from dsv41ctl.ab.settings import Progress
from dsv41ctl.ab.wire import base_body, read_reply, tokenize_body
from dsv41ctl.config.model import Bench
from dsv41ctl.errors import UsageError
from dsv41ctl.jsontypes import Json

__all__ = ["BenchSettings", "Counters", "run_bench"]

_PATH = "/v1/completions"
_OPTIONAL: dict[str, Json] = {
    "ignore_eos": True,
    "stream_options": {"include_usage": True},
    "cache_salt": "probe",
}
_COST = {
    "ignore_eos": "answers may be of different lengths",
    "stream_options": "tokens are counted by streamed pieces",
    "cache_salt": "a cold prefix cache rests on the prompts' being different",
}

Counters = Callable[[], Mapping[str, float] | None]


class _Overrides(TypedDict, total=False):
    prompt_tokens: tuple[int, ...]
    max_tokens: int
    concurrency: tuple[int, ...]
    requests: int
    timeout_s: float
    attempts: int
    seed: int
    arm: Mapping[str, Json]
    api_key: str | None


@dataclass(frozen=True)
class BenchSettings:
    """One measurement.

    Attributes:
        requests: measured requests of each prompt size and concurrency (at least the concurrency).
        attempts: how often a request is tried; a retry is counted.
    """

    url: str
    label: str
    model: str | None = None
    prompt_tokens: tuple[int, ...] = (64, 2048)
    max_tokens: int = 32
    concurrency: tuple[int, ...] = (1, 4)
    requests: int = 8
    timeout_s: float = 600.0
    attempts: int = 3
    seed: int = 41
    arm: Mapping[str, Json] = dataclasses.field(default_factory=dict)
    api_key: str | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def from_config(
        cls, bench: Bench, *, url: str, label: str, model: str | None = None, **over: Unpack[_Overrides]
    ) -> Self:
        """Settings with the cluster file's defaults; what is given here wins."""
        defaults: _Overrides = {
            "prompt_tokens": tuple(bench.prompt_tokens),
            "max_tokens": bench.max_tokens,
            "concurrency": tuple(bench.concurrency),
            "requests": bench.requests,
        }
        merged: _Overrides = {**defaults, **over}
        return cls(url=url, label=label, model=model, **merged)


def run_bench(
    settings: BenchSettings,
    on_progress: Callable[[Progress], None] = quiet,
    counters: Counters | None = None,
    *,
    serve: Serve | None = None,
) -> BenchRun:
    """Measures one arm.

    Args:
        settings: what to measure.
        on_progress: told each cell.
        counters: reads fallback counters, by any name; left out: /metrics.
        serve: for tests.

    Raises:
        UsageError: the settings do not fit each other or the serve.
        ServeError: the serve failed.
    """
    if not settings.prompt_tokens or min(settings.prompt_tokens) < 2:
        raise UsageError("prompt sizes must be 2 tokens or more", hint="--prompt-tokens 64,2048")
    if not settings.concurrency or min(settings.concurrency) < 1 or settings.requests < 1:
        raise UsageError("concurrency and requests must be 1 or more", hint="--concurrency 1,4 --requests 8")
    if settings.max_tokens < 2:
        raise UsageError("time between tokens needs 2 generated tokens or more", hint="--max-tokens 32")
    client = serve or Serve(
        settings.url, timeout_s=settings.timeout_s, attempts=settings.attempts, api_key=settings.api_key
    )
    try:
        return _Bench(settings, client, on_progress).run(counters)
    finally:
        if serve is None:
            client.close()


class _Bench:
    """One measurement in progress. Threads: one pool a cell, started and joined in `_cell`; they share the client."""

    def __init__(self, settings: BenchSettings, serve: Serve, on_progress: Callable[[Progress], None]) -> None:
        self._settings = settings
        self._serve = serve
        self._on_progress = on_progress
        self._cautions: list[str] = []
        self._warmups = 0
        self._optional: dict[str, Json] = {}

    def run(self, counters: Counters | None) -> BenchRun:
        settings = self._settings
        started = datetime.now(UTC).isoformat(timespec="seconds")
        model, limit = choose_model(self._serve, settings.model)
        longest = max(settings.prompt_tokens) + settings.max_tokens
        if limit is not None and longest > limit:
            raise UsageError(f"{longest} tokens are more than the serve's {limit}", hint="--prompt-tokens, smaller")
        self._probe(model)
        tokenized = self._serve.tokenize(tokenize_body(model, "harbour", chat=False)) is not None
        before = settle(self._serve, 3.0)
        if before is not None and (before.running or before.waiting):
            self._caution("the server was busy before the run")
        first = counters() if counters else None
        cells: list[BenchCell] = []
        total = len(settings.prompt_tokens) * len(settings.concurrency)
        for size in settings.prompt_tokens:
            chars = self._chars(model, size, tokenized)
            for concurrency in settings.concurrency:
                cell = self._cell(model, size, chars, concurrency, seed=len(cells))
                cells.append(cell)
                text = f"{size} tokens, {concurrency} at once: TTFT {cell.median('ttft_s') or 0:.4f} s"
                self._on_progress(Progress(text, len(cells), total))
        after = settle(self._serve, 3.0)
        if counters:
            state, moved = _state(first, counters(), None)
        else:
            state, moved = _state(before.lookups if before else None, after.lookups if after else None, "fallback")
        if before and after and before.hits is not None and after.hits != before.hits:
            self._caution(f"prefix cache hits moved by {(after.hits or 0) - before.hits:g}: TTFT is too good")
        if before and after and before.serve_start != after.serve_start:
            state = "unproven"
            self._caution("the serve was restarted during the run")
        if state == "unproven":
            self._caution("fallbacks unknown: no counters before and after the run")
        return BenchRun(
            label=settings.label,
            url=self._serve.url,
            model=model,
            version=self._serve.version(),
            started=started,
            max_tokens=settings.max_tokens,
            arm=dict(settings.arm),
            state=state,
            counters=moved,
            warmups=self._warmups,
            cautions=self._cautions,
            cells=cells,
        )

    def _caution(self, text: str) -> None:
        self._cautions.append(text)
        self._on_progress(Progress(f"caution: {text}", 0, 0))

    def _probe(self, model: str) -> None:
        """Drops the parameters that this serve refuses; the first request of all also wakes it up."""
        base: dict[str, Json] = {**base_body(model, "harbour", chat=False, max_tokens=2, logprobs=None), "stream": True}
        self._once(base)
        for name, value in _OPTIONAL.items():
            try:
                self._once({**base, name: value})
            except ServeRefused as error:
                self._caution(f"{name} refused ({error.reason}): {_COST[name]}")
            else:
                self._optional[name] = value

    def _chars(self, model: str, size: int, tokenized: bool) -> int:
        """How many characters of the built-in text make `size` tokens."""

        def count(text: str) -> int:
            if tokenized:
                answer = self._serve.tokenize(tokenize_body(model, text, chat=False))
                return answer.count if answer else 0
            body = base_body(model, text, chat=False, max_tokens=1, logprobs=None)
            return read_reply(self._serve.post(_PATH, lambda: body), chat=False).prompt_tokens

        fit = fit_exactly if tokenized else fit_roughly
        return len(fit(Builtin(self._settings.seed), 0, size, count).text)

    def _cell(self, model: str, size: int, chars: int, concurrency: int, *, seed: int) -> BenchCell:
        settings = self._settings
        number = max(settings.requests, concurrency)
        # Texts of their own for every request: nothing can come from the prefix cache.
        source = Builtin(settings.seed + 1 + seed)
        bodies = [
            base_body(model, source.text(i, chars)[:chars], chat=False, max_tokens=settings.max_tokens, logprobs=None)
            for i in range(number + concurrency)
        ]
        retries = 0
        with ThreadPoolExecutor(concurrency) as pool:
            list(pool.map(self._timed, bodies[number:]))
            self._warmups += concurrency
            begun = time.perf_counter()
            requests: list[BenchRequest] = []
            for request, attempts in pool.map(self._timed, bodies[:number]):
                requests.append(request)
                retries += attempts - 1
            wall = time.perf_counter() - begun
        if retries:
            self._caution(f"{size} tokens, {concurrency} at once: {retries} requests were retried")
        return BenchCell(
            prompt_tokens=size, concurrency=concurrency, wall_s=round(wall, 6), retries=retries, requests=requests
        )

    def _timed(self, base: dict[str, Json]) -> tuple[BenchRequest, int]:
        attempt = 0
        while True:
            attempt += 1
            body: dict[str, Json] = {**base, "stream": True, **self._optional}
            if "cache_salt" in body:
                body["cache_salt"] = uuid.uuid4().hex
            try:
                return self._once(body), attempt
            except ServeRefused:
                raise
            except ServeError:
                if attempt >= self._settings.attempts:
                    raise

    def _once(self, body: Body) -> BenchRequest:
        begun = time.perf_counter()
        times: list[float] = []
        prompt_tokens, tokens = 0, None
        with self._serve.stream(_PATH, body) as chunks:
            for chunk in chunks:
                now = time.perf_counter()
                if chunk.usage is not None:
                    prompt_tokens, tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
                # A last piece without text only says why the answer ended.
                if any(choice.text or choice.finish_reason is None for choice in chunk.choices):
                    times.append(now)
            ended = time.perf_counter()
        if not times:
            raise ServeError(f"{self._serve.url}{_PATH}: no token in the stream", hint="look at the serve's log")
        return BenchRequest(
            prompt_tokens=prompt_tokens,
            tokens=len(times) if tokens is None else tokens,
            ttft_s=times[0] - begun,
            decode_s=times[-1] - times[0],
            total_s=ended - begun,
            gaps_s=[round(after - before, 6) for before, after in pairwise(times)],
        )


def _state(
    before: Mapping[str, float] | None, after: Mapping[str, float] | None, only: str | None
) -> tuple[State, dict[str, float] | None]:
    """Whether fallbacks moved. A counter that fell belongs to another start: nothing is proven."""
    if before is None or after is None:
        return "unproven", None
    moved = {name: value - before.get(name, 0.0) for name, value in sorted(after.items())}
    watched = [change for name, change in moved.items() if only in (None, name)]
    if any(change < 0 for change in moved.values()):
        return "unproven", moved
    return ("mixed" if any(watched) else "clean"), moved
