"""`ab run`: one arm. Each prompt greedy, alone, with a salt of its own, and with the counters read around it."""

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from dsv41ctl.ab.capabilities import Capabilities, probe
from dsv41ctl.ab.capturefile import Writer, refuse_existing
from dsv41ctl.ab.client import Body, Serve, ServeError
from dsv41ctl.ab.metrics import Sample, judge, moved, parse, quiet_now
from dsv41ctl.ab.prompts import Builtin, Prompt, Source, fit_exactly, fit_roughly, read_jsonl
from dsv41ctl.ab.records import SCHEMA, Flags, Footer, Header, PromptEntry, PromptRecord
from dsv41ctl.ab.settings import CaptureSettings, CaptureSummary, Progress
from dsv41ctl.ab.wire import base_body, path_of, read_reply, tokenize_body
from dsv41ctl.errors import UsageError
from dsv41ctl.jsontypes import Json

__all__ = ["capture", "quiet", "settle"]

_EXCERPT = 160
_POLL_S = 0.1


def quiet(progress: Progress) -> None:
    """Shows nothing."""


def capture(
    settings: CaptureSettings, on_progress: Callable[[Progress], None] = quiet, *, serve: Serve | None = None
) -> CaptureSummary:
    """Captures one arm.

    Args:
        settings: what to ask.
        on_progress: told each degradation, prompt and mark.
        serve: for tests; made from the settings otherwise.

    Raises:
        UsageError: the settings do not fit each other, the data, or the serve.
        ServeError: the serve failed; what was captured stays in OUT.partial for `resume`.
    """
    _check(settings)
    source: Source = read_jsonl(settings.data, settings.field) if settings.data else Builtin(settings.seed)
    client = serve or Serve(
        settings.url, timeout_s=settings.timeout_s, attempts=settings.attempts, api_key=settings.api_key
    )
    try:
        return _Run(settings, client, source, on_progress).run()
    finally:
        if serve is None:
            client.close()


def _check(settings: CaptureSettings) -> None:
    refuse_existing(settings.out, resume=settings.resume, overwrite=settings.overwrite)
    if not settings.sizes or min(settings.sizes) < 2:
        raise UsageError("prompt sizes must be 2 tokens or more", hint="--sizes 64,8192")
    if settings.max_tokens < 1:
        raise UsageError(f"max_tokens is {settings.max_tokens}", hint="--max-tokens 64")
    if settings.top_logprobs < 1:
        raise UsageError("a comparison needs logprobs of the generated tokens", hint="--logprobs 20")
    if not settings.label.strip():
        raise UsageError("the label is empty", hint="--label A1")


class _Run:
    """One capture in progress."""

    def __init__(
        self,
        settings: CaptureSettings,
        serve: Serve,
        source: Source,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._settings = settings
        self._serve = serve
        self._source = source
        self._on_progress = on_progress
        self._done = 0

    def run(self) -> CaptureSummary:
        settings = self._settings
        begun = time.monotonic()
        can = probe(
            self._serve,
            model=settings.model,
            chat=settings.chat,
            logprobs=settings.top_logprobs,
            prompt_logprobs=settings.prompt_logprobs,
            priority=settings.priority,
        )
        for line in can.degradations:
            self._say(f"degraded: {line}")
        prompts = self._prompts(can)
        header = self._header(can, prompts)
        with Writer(settings.out, header, resume=settings.resume) as writer:
            if writer.resumed:
                self._say(f"resumed after {writer.resumed} of {len(prompts)} prompts")
            for index in range(writer.resumed, len(prompts)):
                self._done = index
                try:
                    record = self._one(index, prompts[index], can, header)
                except ServeError as error:
                    error.hint = "; then ".join(filter(None, (error.hint, "the same `ab run` with --resume")))
                    raise
                writer.add(record)
                self._done = index + 1
                self._say(_line(record))
            requests = sum(record.attempts for record in writer.done)
            footer = writer.finish(requests, requests - len(writer.done), time.monotonic() - begun)
            return self._summary(writer, footer)

    def _prompts(self, can: Capabilities) -> list[Prompt]:
        settings = self._settings
        for size in settings.sizes:
            if can.max_model_len is not None and size + settings.max_tokens > can.max_model_len:
                raise UsageError(
                    f"{size} prompt tokens and {settings.max_tokens} generated are more than the serve's "
                    f"{can.max_model_len}",
                    hint="--sizes with smaller numbers",
                )
        fit = fit_exactly if can.tokenize else fit_roughly
        count = self._tokenizer(can.model) if can.tokenize else self._usage(can.model)
        return [fit(self._source, index, size, count) for index, size in enumerate(settings.sizes)]

    def _tokenizer(self, model: str) -> Callable[[str], int]:
        def count(text: str) -> int:
            answer = self._serve.tokenize(tokenize_body(model, text, chat=self._settings.chat))
            if answer is None:
                raise ServeError(f"{self._serve.url}/tokenize: gone since the probe", hint="look at the serve's log")
            return answer.count

        return count

    def _usage(self, model: str) -> Callable[[str], int]:
        chat = self._settings.chat

        def count(text: str) -> int:
            body = base_body(model, text, chat=chat, max_tokens=1, logprobs=None)
            tokens = read_reply(self._serve.post(path_of(chat), lambda: body), chat=chat).prompt_tokens
            if tokens < 1:
                raise ServeError(
                    f"{self._serve.url}: neither /tokenize nor usage: prompts cannot be sized", hint="check --url"
                )
            return tokens

        return count

    def _header(self, can: Capabilities, prompts: list[Prompt]) -> Header:
        settings = self._settings
        return Header(
            schema=SCHEMA,
            run_id=uuid.uuid4().hex,
            label=settings.label,
            arm=dict(settings.arm),
            url=self._serve.url,
            model=can.model,
            system_fingerprint=can.fingerprint,
            version=can.version,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            flags=Flags(
                api="chat" if settings.chat else "completions",
                max_tokens=settings.max_tokens,
                logprobs=settings.top_logprobs,
                prompt_logprobs=settings.prompt_logprobs if can.can("prompt_logprobs") else None,
                token_keys="ids" if can.can("return_tokens_as_token_ids") else "text",
                cache_salt=can.can("cache_salt"),
            ),
            priority=settings.priority if can.can("priority") else None,
            source=self._source.describe(),
            degradations=list(can.degradations),
            prompts=[PromptEntry(name=p.name, size=p.size, sha256=p.sha256, chars=len(p.text)) for p in prompts],
        )

    def _one(self, index: int, prompt: Prompt, can: Capabilities, header: Header) -> PromptRecord:
        settings = self._settings
        flags = header.flags
        salts: list[str] = []

        def body() -> Body:
            # A retry must not find what a failed attempt left in the prefix cache.
            salts.append(uuid.uuid4().hex)
            more: dict[str, Json] = {}
            if flags.cache_salt:
                more["cache_salt"] = salts[-1]
            if header.priority is not None:
                more["priority"] = header.priority
            if can.can("return_token_ids"):
                more["return_token_ids"] = True
            if flags.token_keys == "ids":  # noqa: S105 - no secret
                more["return_tokens_as_token_ids"] = True
            if flags.prompt_logprobs is not None:
                more["prompt_logprobs"] = flags.prompt_logprobs
            asked = base_body(
                can.model, prompt.text, chat=settings.chat, max_tokens=settings.max_tokens, logprobs=flags.logprobs
            )
            return {**asked, **more}

        before = settle(self._serve, settings.settle_s)
        answer = self._serve.post(path_of(settings.chat), body)
        reply = read_reply(answer, chat=settings.chat)
        finished = None if before is None or before.finished is None else before.finished + 1
        after = settle(self._serve, settings.settle_s, finished)
        marks = judge(before, after, answer.attempts)
        if not reply.generated.tokens:
            marks.append("no logprobs in the answer")
        elif not all(reply.generated.top):
            marks.append("a generated position has no top_logprobs")
        if flags.prompt_logprobs is not None and reply.forced is None:
            marks.append("no prompt_logprobs in the answer")
        if reply.completion_tokens not in (None, len(reply.generated.tokens)) and reply.generated.tokens:
            marks.append(f"{reply.completion_tokens} tokens by usage, {len(reply.generated.tokens)} with logprobs")
        if reply.fingerprint != header.system_fingerprint:
            marks.append("system_fingerprint changed during the run")
        return PromptRecord(
            index=index,
            name=prompt.name,
            sha256=prompt.sha256,
            excerpt=prompt.text[:_EXCERPT],
            prompt_tokens=len(reply.prompt_ids) if reply.prompt_ids is not None else reply.prompt_tokens,
            prompt_ids=reply.prompt_ids,
            text=reply.text,
            finish_reason=reply.finish_reason,
            system_fingerprint=reply.fingerprint,
            generated=reply.generated,
            forced=reply.forced,
            salt=salts[-1] if flags.cache_salt else None,
            attempts=answer.attempts,
            seconds=round(answer.seconds, 6),
            before=before,
            after=after,
            lookups=moved(before, after),
            marks=marks,
        )

    def _say(self, text: str) -> None:
        self._on_progress(Progress(text, self._done, len(self._settings.sizes)))

    def _summary(self, writer: Writer, footer: Footer) -> CaptureSummary:
        lookups: dict[str, float] = {}
        for record in writer.done:
            for source, count in record.lookups.items():
                lookups[source] = lookups.get(source, 0.0) + count
        return CaptureSummary(
            path=writer.out,
            run_id=writer.header.run_id,
            label=writer.header.label,
            model=writer.header.model,
            prompts=footer.prompts,
            generated_tokens=footer.generated_tokens,
            prompt_positions=footer.prompt_positions,
            requests=footer.requests,
            retries=footer.retries,
            seconds=footer.seconds,
            sha256=footer.sha256,
            degradations=tuple(writer.header.degradations),
            marks=tuple(f"prompt {record.name}: {mark}" for record in writer.done for mark in record.marks),
            lookups=lookups,
        )


def settle(serve: Serve, seconds: float, finished: float | None = None) -> Sample | None:
    """Reads the counters, waiting a little for the serve to be idle: its gauges trail its answers."""
    deadline = time.monotonic() + seconds
    while True:
        sample = parse(serve.metrics())
        if quiet_now(sample, finished) or time.monotonic() >= deadline:
            return sample
        time.sleep(_POLL_S)


def _line(record: PromptRecord) -> str:
    text = (
        f"prompt {record.name}: {record.prompt_tokens} tokens, {len(record.generated.tokens)} generated, "
        f"{record.seconds:.2f} s"
    )
    if record.attempts > 1:
        text += f", {record.attempts} attempts"
    return text + "".join(f"\n  marked: {mark}" for mark in record.marks)
