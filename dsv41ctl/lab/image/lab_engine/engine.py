"""Runs requests one after another, in the order they came."""

import queue
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from lab_engine.metrics import Metrics
from lab_engine.model import Sequence
from lab_engine.sampling import Ranked, Sampler, rank_tokens
from lab_engine.tokenizer import END_OF_TURN, EOS, Detokenizer
from lab_engine.worker import Worker

__all__ = ["Engine", "Finished", "Job", "PromptDone", "Step"]

_HEARTBEAT_S = 0.5


@dataclass(frozen=True)
class PromptDone:
    """The prompt is computed; `logprobs` has an entry a token where they were asked for (position 0: None)."""

    logprobs: list[Ranked | None] | None


@dataclass(frozen=True)
class Step:
    """One generated token and the text it completes."""

    token: int
    text: str
    ranked: Ranked | None


@dataclass(frozen=True)
class Finished:
    """The end: `stop`, `length` or `abort`; the text that was still held back; the token or string that stopped it."""

    reason: str
    text: str = ""
    stop_reason: int | str | None = None


Event = PromptDone | Step | Finished


@dataclass
class Job:
    """One prompt to compute and continue. The engine puts events; the API takes them."""

    prompt: list[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    events: "queue.SimpleQueue[Event]" = field(default_factory=queue.SimpleQueue)
    cancelled: threading.Event = field(default_factory=threading.Event)


class Engine:
    """The one thread that computes. `submit` may be called from any thread; `run` belongs to the engine's own.

    Args:
        worker: rank 0's worker.
        metrics: where to count.
        noise_above: positions from here on get random logits on top, as a nondeterministic kernel would give.
    """

    def __init__(self, worker: Worker, metrics: Metrics, noise_above: int | None) -> None:
        self._worker = worker
        self._metrics = metrics
        self._noise_above = noise_above
        self._noise = np.random.default_rng()
        self._jobs: deque[Job] = deque()
        self._wake = threading.Condition()
        self._stopping = False

    def submit(self, job: Job) -> None:
        """Queues a job."""
        with self._wake:
            self._jobs.append(job)
            self._metrics.waiting = len(self._jobs)
            self._wake.notify()

    def stop(self) -> None:
        """Lets `run` return after the step that it is in."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def run(self) -> None:
        """Computes jobs until stop(); between them asks every rank for its counters, which shows a lost peer."""
        while True:
            self._count()
            with self._wake:
                if not self._jobs and not self._stopping:
                    self._wake.wait(_HEARTBEAT_S)
                if self._stopping:
                    break
                job = self._jobs.popleft() if self._jobs else None
                self._metrics.waiting = len(self._jobs)
                self._metrics.running = int(job is not None)
            if job is not None:
                try:
                    self._compute(job)
                finally:
                    self._metrics.running = 0
        self._worker.stop()

    def _count(self) -> None:
        lookups = self._worker.count()
        with self._metrics.lock:
            self._metrics.lookups = lookups

    def _finish(self, job: Job, finished: Finished) -> None:
        # Counters first: whoever reads the answer and then /metrics must find it counted.
        self._count()
        with self._metrics.lock:
            self._metrics.finished[finished.reason] += 1
            self._metrics.running = 0
        job.events.put(finished)

    def _compute(self, job: Job) -> None:
        limit = len(job.prompt) + job.max_tokens
        context = np.zeros(limit, dtype=np.int64)
        context[: len(job.prompt)] = job.prompt
        sequence = Sequence(self._worker.model.shape, limit)
        last = None
        ranked: list[Ranked | None] = [None]
        for logits in self._prefill(job, sequence, context):
            if job.prompt_logprobs is not None:
                begin = sequence.length - len(logits)
                following = context[begin + 1 : min(sequence.length + 1, len(job.prompt))].tolist()
                ranked += rank_tokens(logits[: len(following)], following, job.prompt_logprobs) if following else []
            last = logits[-1]
        if last is None:
            self._finish(job, Finished("abort"))
            return
        job.events.put(PromptDone(ranked if job.prompt_logprobs is not None else None))
        with self._metrics.lock:
            self._metrics.prompt_tokens += len(job.prompt)
        self._finish(job, self._generate(job, sequence, context, last))

    def _prefill(self, job: Job, sequence: Sequence, context: np.ndarray) -> Iterator[torch.Tensor]:
        every = job.prompt_logprobs is not None
        while sequence.length < len(job.prompt) and not job.cancelled.is_set() and not self._stopping:
            count = min(self._worker.max_tokens, len(job.prompt) - sequence.length)
            begin = sequence.length
            logits = self._worker.step(sequence, context, count, all_logits=every)
            done = sequence.length == len(job.prompt)
            if every or done:
                yield self._noisy(logits, begin + count - len(logits))

    def _generate(self, job: Job, sequence: Sequence, context: np.ndarray, logits: torch.Tensor) -> Finished:
        sampler = Sampler(job.temperature, job.top_p, job.top_k, job.seed)
        words = Detokenizer()
        emitted = _StopText(job.stop)
        ends = set(job.stop_token_ids) | (set() if job.ignore_eos else {EOS, END_OF_TURN})
        for number in range(job.max_tokens):
            if job.cancelled.is_set() or self._stopping:
                return Finished("abort")
            if number < job.min_tokens:
                logits = logits.clone()
                logits[sorted(ends)] = float("-inf")
            token = sampler.pick(logits)
            ranked = None if job.logprobs is None else rank_tokens(logits[None], [token], job.logprobs)[0]
            with self._metrics.lock:
                self._metrics.generation_tokens += 1
            if token in ends:
                job.events.put(Step(token, "", ranked))
                own = token if token in job.stop_token_ids else None
                return Finished("stop", emitted.rest(words.flush()), own)
            text, stopped = emitted.push(words.push(token))
            job.events.put(Step(token, text, ranked))
            if stopped is not None:
                return Finished("stop", "", stopped)
            context[len(job.prompt) + number] = token
            if number + 1 < job.max_tokens:
                logits = self._worker.step(sequence, context, 1, all_logits=False)[-1]
                logits = self._noisy(logits[None], sequence.length - 1)[0]
        return Finished("length", emitted.rest(words.flush()))

    def _noisy(self, logits: torch.Tensor, first: int) -> torch.Tensor:
        """Adds noise to the rows whose position is at or above the limit; `first` is the first row's position."""
        if self._noise_above is None or first + len(logits) <= self._noise_above:
            return logits
        noise = torch.from_numpy(self._noise.normal(0.0, 0.02, tuple(logits.shape)).astype(np.float32))
        noise[: max(0, self._noise_above - first)] = 0
        return logits + noise


class _StopText:
    """Holds back text that may be the beginning of a stop string."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """What can go out now, and the stop string that was found."""
        self._held += text
        found = [(at, word) for word in self._stop if (at := self._held.find(word)) >= 0]
        if found:
            at, word = min(found)
            out, self._held = self._held[:at], ""
            return out, word
        keep = max((_overlap(self._held, word) for word in self._stop), default=0)
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return out, None

    def rest(self, text: str) -> str:
        """What is left when nothing more comes."""
        out, self._held = self._held + text, ""
        return out


def _overlap(text: str, word: str) -> int:
    return next((size for size in range(min(len(text), len(word) - 1), 0, -1) if text.endswith(word[:size])), 0)
