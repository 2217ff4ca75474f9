"""The JSON of answers, as vLLM prints them."""

import time
import uuid
from dataclasses import dataclass, field

from lab_engine.api import Body, Call
from lab_engine.engine import Finished, Job, PromptDone, Step
from lab_engine.sampling import Ranked
from lab_engine.tokenizer import decode, decode_token

__all__ = ["Answer", "Header", "chat_answer", "chat_chunk", "completion_answer", "completion_chunk", "usage"]


@dataclass(frozen=True)
class Header:
    """What every part of one answer carries."""

    id: str
    created: int
    model: str
    fingerprint: str

    @classmethod
    def new(cls, call: Call, fingerprint: str) -> "Header":
        """A fresh one."""
        prefix = "chatcmpl" if call.chat else "cmpl"
        return cls(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), call.model, fingerprint)

    def body(self, kind: str) -> Body:
        """The common fields."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


@dataclass
class Answer:
    """What one job gave."""

    job: Job
    prompt: PromptDone | None = None
    steps: list[Step] = field(default_factory=list)
    finished: Finished | None = None

    def take(self, event: PromptDone | Step | Finished) -> bool:
        """Adds an event; True at the end."""
        if isinstance(event, PromptDone):
            self.prompt = event
        elif isinstance(event, Step):
            self.steps.append(event)
        else:
            self.finished = event
        return isinstance(event, Finished)

    @property
    def text(self) -> str:
        """The generated text."""
        return "".join(step.text for step in self.steps) + (self.finished.text if self.finished else "")

    @property
    def tokens(self) -> list[int]:
        """The generated tokens."""
        return [step.token for step in self.steps]


def usage(answers: list[Answer]) -> Body:
    """Token counts."""
    prompt = sum(len(answer.job.prompt) for answer in answers)
    completion = sum(len(answer.steps) for answer in answers)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
    }


def _name(token: int, call: Call) -> str:
    return f"token_id:{token}" if call.tokens_as_ids else decode_token(token)


def _completion_logprobs(ranked: list[Ranked | None], tokens: list[int], call: Call, offset: int) -> Body:
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(decode_token(token))
    return {
        "text_offset": offsets,
        "token_logprobs": [entry.logprob if entry else None for entry in ranked],
        "tokens": [_name(token, call) for token in tokens],
        # Keyed by text, so tokens that share a spelling share an entry, as they do in vLLM.
        "top_logprobs": [
            {
                _name(entry.token, call): entry.logprob,
                **{_name(token, call): value for token, value in reversed(entry.top) if token != entry.token},
            }
            if entry
            else None
            for entry in ranked
        ],
    }


def _prompt_logprobs(answer: Answer) -> list[Body | None] | None:
    logprobs = answer.prompt.logprobs if answer.prompt else None
    if logprobs is None:
        return None
    shaped: list[Body | None] = []
    for entry in logprobs:
        if entry is None:
            shaped.append(None)
            continue
        found = {entry.token: (entry.logprob, entry.rank)}
        found |= {token: (value, rank) for rank, (token, value) in enumerate(entry.top, 1) if token != entry.token}
        shaped.append(
            {
                str(token): {"logprob": value, "rank": rank, "decoded_token": decode_token(token)}
                for token, (value, rank) in found.items()
            }
        )
    return shaped


def completion_answer(header: Header, call: Call, answers: list[Answer]) -> Body:
    """A whole /v1/completions answer."""
    choices = []
    for index, answer in enumerate(answers):
        tokens, ranked = answer.tokens, [step.ranked for step in answer.steps]
        text = answer.text
        if call.echo:
            text = decode(answer.job.prompt) + text
            tokens = answer.job.prompt + tokens
            ranked = [*_echoed(answer), *ranked]
        choices.append(
            {
                "index": index,
                "text": text,
                "logprobs": None if answer.job.logprobs is None else _completion_logprobs(ranked, tokens, call, 0),
                "finish_reason": answer.finished.reason if answer.finished else None,
                "stop_reason": answer.finished.stop_reason if answer.finished else None,
                "token_ids": tokens if call.return_token_ids else None,
                "prompt_logprobs": _prompt_logprobs(answer),
                "prompt_token_ids": answer.job.prompt if call.return_token_ids else None,
            }
        )
    body = header.body("text_completion")
    return {**body, "choices": choices, "usage": usage(answers), "service_tier": None, "kv_transfer_params": None}


def _echoed(answer: Answer) -> list[Ranked | None]:
    logprobs = answer.prompt.logprobs if answer.prompt else None
    return list(logprobs) if logprobs is not None else [None] * len(answer.job.prompt)


def _chat_logprobs(steps: list[Step], call: Call) -> Body:
    content = []
    for step in steps:
        entry = step.ranked
        if entry is None:
            continue
        content.append(
            {
                **_chat_token(entry.token, entry.logprob, call),
                "top_logprobs": [_chat_token(token, value, call) for token, value in entry.top],
            }
        )
    return {"content": content}


def _chat_token(token: int, value: float, call: Call) -> Body:
    name = _name(token, call)
    raw = [token] if token < 256 and not call.tokens_as_ids else list(name.encode())
    return {"token": name, "logprob": value, "bytes": raw}


def chat_answer(header: Header, call: Call, answer: Answer) -> Body:
    """A whole /v1/chat/completions answer."""
    choice = {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": answer.text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "tool_calls": [],
            "reasoning": None,
        },
        "logprobs": None if answer.job.logprobs is None else _chat_logprobs(answer.steps, call),
        "finish_reason": answer.finished.reason if answer.finished else None,
        "stop_reason": answer.finished.stop_reason if answer.finished else None,
        "token_ids": answer.tokens if call.return_token_ids else None,
    }
    return {
        **header.body("chat.completion"),
        "choices": [choice],
        "service_tier": None,
        "usage": usage([answer]),
        "prompt_logprobs": _prompt_logprobs(answer),
        "prompt_token_ids": answer.job.prompt if call.return_token_ids else None,
        "kv_transfer_params": None,
    }


def completion_chunk(header: Header, call: Call, index: int, answer: Answer, event: Step | Finished) -> Body:
    """One streamed piece of a /v1/completions answer; `answer` already holds `event`."""
    step = event if isinstance(event, Step) else None
    shown = [step] if step else []
    offset = sum(len(decode_token(token)) for token in answer.tokens[: len(answer.steps) - len(shown)])
    first = step is not None and len(answer.steps) == 1
    choice: Body = {
        "index": index,
        "text": event.text,
        "logprobs": None
        if answer.job.logprobs is None or step is None
        else _completion_logprobs([step.ranked], [step.token], call, offset),
        "finish_reason": None if isinstance(event, Step) else event.reason,
        "stop_reason": None if isinstance(event, Step) else event.stop_reason,
        "prompt_token_ids": answer.job.prompt if call.return_token_ids and first else None,
        "token_ids": [part.token for part in shown] if call.return_token_ids else None,
    }
    return {**header.body("text_completion"), "choices": [choice]}


def chat_chunk(header: Header, call: Call, answer: Answer, event: Step | Finished | None) -> Body:
    """One streamed piece of a chat answer; None: the first, which names the role."""
    body = header.body("chat.completion.chunk")
    if event is None:
        choice: Body = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
        choice["finish_reason"] = None
        ids = {"prompt_token_ids": answer.job.prompt} if call.return_token_ids else {}
        return {**body, "choices": [choice], **ids}
    step = event if isinstance(event, Step) else None
    choice = {
        "index": 0,
        "delta": {"content": event.text},
        "logprobs": None if answer.job.logprobs is None or step is None else _chat_logprobs([step], call),
        "finish_reason": None if isinstance(event, Step) else event.reason,
        "stop_reason": None if isinstance(event, Step) else event.stop_reason,
        "token_ids": ([step.token] if step else []) if call.return_token_ids else None,
    }
    return {**body, "choices": [choice]}
