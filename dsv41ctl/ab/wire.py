"""Builds the requests of a capture, and brings both APIs' answers into one form. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dsv41ctl.ab.answers import ChatAnswer, CompletionAnswer, PromptLogprobs
from dsv41ctl.ab.client import Answer, Body, ServeError
from dsv41ctl.ab.records import Forced, Generated, Key
from dsv41ctl.jsontypes import Json

__all__ = ["Reply", "base_body", "path_of", "read_reply", "tokenize_body"]

_TOKEN_ID = "token_id:"  # noqa: S105 - a prefix of the API, no secret


@dataclass(frozen=True)
class Reply:
    """An answer in one form for both APIs.

    Attributes:
        named_ids: alternatives are named by id.
        token_ids: the serve's own list of generated ids, or None.
    """

    text: str
    finish_reason: str | None
    fingerprint: str | None
    prompt_tokens: int
    completion_tokens: int | None
    prompt_ids: list[int] | None
    token_ids: list[int] | None
    named_ids: bool
    generated: Generated
    forced: list[Forced] | None


def path_of(chat: bool) -> str:
    """The API's path."""
    return "/v1/chat/completions" if chat else "/v1/completions"


def base_body(model: str, text: str, *, chat: bool, max_tokens: int, logprobs: int | None) -> dict[str, Json]:
    """A greedy request without any of the optional parameters."""
    body: dict[str, Json] = {"model": model, "max_tokens": max_tokens, "temperature": 0}
    if not chat:
        body["prompt"] = text
        if logprobs is not None:
            body["logprobs"] = logprobs
        return body
    body["messages"] = [{"role": "user", "content": text}]
    # DeepSeek's template reads `thinking`, others read `enable_thinking`.
    body["chat_template_kwargs"] = {"thinking": False, "enable_thinking": False}
    if logprobs is not None:
        body["logprobs"] = True
        body["top_logprobs"] = logprobs
    return body


def tokenize_body(model: str, text: str, *, chat: bool) -> Body:
    """What /tokenize is asked, so that it counts as the request will."""
    if chat:
        return {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "chat_template_kwargs": {"thinking": False, "enable_thinking": False},
        }
    return {"model": model, "prompt": text}


def read_reply(answer: Answer, *, chat: bool) -> Reply:
    """Reads one answer.

    Raises:
        ServeError: no choice in it, lists that do not fit each other, or a logprob that is not a number.
    """
    return _read_chat(answer) if chat else _read_completion(answer)


def _read_completion(answer: Answer) -> Reply:
    data = answer.parse(CompletionAnswer)
    if not data.choices:
        raise _odd(answer, "no choices in it")
    choice = data.choices[0]
    found = choice.logprobs
    tokens: list[str] = found.tokens if found else []
    tops: Sequence[dict[str, float] | None] = (found.top_logprobs if found else None) or [None] * len(tokens)
    logprobs = found.token_logprobs if found else []
    if not len(tokens) == len(tops) == len(logprobs):
        raise _odd(answer, f"{len(tokens)} tokens, {len(logprobs)} logprobs, {len(tops)} top_logprobs")
    generated = _generated(answer, tokens, logprobs, [list((top or {}).items()) for top in tops], choice.token_ids)
    return Reply(
        text=choice.text,
        finish_reason=choice.finish_reason,
        fingerprint=data.system_fingerprint,
        prompt_tokens=data.usage.prompt_tokens if data.usage else 0,
        completion_tokens=data.usage.completion_tokens if data.usage else None,
        prompt_ids=choice.prompt_token_ids,
        token_ids=choice.token_ids,
        named_ids=_all_ids(generated),
        generated=generated,
        forced=_forced(answer, choice.prompt_logprobs, choice.prompt_token_ids),
    )


def _read_chat(answer: Answer) -> Reply:
    data = answer.parse(ChatAnswer)
    if not data.choices:
        raise _odd(answer, "no choices in it")
    choice = data.choices[0]
    content = (choice.logprobs.content if choice.logprobs else None) or []
    generated = _generated(
        answer,
        [entry.token for entry in content],
        [entry.logprob for entry in content],
        [[(top.token, top.logprob) for top in entry.top_logprobs] for entry in content],
        choice.token_ids,
    )
    return Reply(
        text=choice.message.content or "",
        finish_reason=choice.finish_reason,
        fingerprint=data.system_fingerprint,
        prompt_tokens=data.usage.prompt_tokens if data.usage else 0,
        completion_tokens=data.usage.completion_tokens if data.usage else None,
        prompt_ids=data.prompt_token_ids,
        token_ids=choice.token_ids,
        named_ids=_all_ids(generated),
        generated=generated,
        forced=_forced(answer, data.prompt_logprobs, data.prompt_token_ids),
    )


def _generated(
    answer: Answer,
    tokens: Sequence[str],
    logprobs: Sequence[float | None],
    tops: Sequence[Sequence[tuple[str, float]]],
    ids: list[int] | None,
) -> Generated:
    chosen: list[Key] = [_key(token) for token in tokens]
    if ids is not None and chosen:
        if len(ids) != len(chosen):
            raise _odd(answer, f"{len(ids)} token_ids for {len(chosen)} tokens with logprobs")
        named = [key for key in chosen if isinstance(key, int)]
        if named and named != ids:
            raise _odd(answer, "token_ids and the tokens of logprobs are not the same")
    return Generated(
        tokens=chosen,
        logprobs=[_number(answer, value, f"generated position {place}") for place, value in enumerate(logprobs)],
        top=[
            [(_key(token), _number(answer, value, f"generated position {place}")) for token, value in top]
            for place, top in enumerate(tops)
        ],
    )


def _forced(answer: Answer, found: PromptLogprobs | None, ids: list[int] | None) -> list[Forced] | None:
    if found is None:
        return None
    if ids is None:
        raise _odd(answer, "prompt_logprobs without prompt_token_ids: the prompt's own tokens are unknown")
    if len(found) != len(ids):
        raise _odd(answer, f"prompt_logprobs has {len(found)} positions, the prompt {len(ids)} tokens")
    rows: list[Forced] = []
    for place, (token, entries) in enumerate(zip(ids, found, strict=True)):
        if place == 0:
            # Nothing stands before the first token; serves send null there.
            continue
        own = (entries or {}).get(str(token))
        if entries is None or own is None:
            raise _odd(answer, f"prompt_logprobs lacks the prompt's own token {token} at position {place}")
        where = f"prompt position {place}"
        if not all(key.isdecimal() for key in entries):
            raise _odd(answer, f"prompt_logprobs at position {place} is not keyed by token ids")
        top = [(int(key), _number(answer, entry.logprob, where)) for key, entry in entries.items()]
        rows.append((token, _number(answer, own.logprob, where), own.rank, top))
    return rows


def _key(token: str) -> Key:
    number = token.removeprefix(_TOKEN_ID)
    return int(number) if number != token and number.isdecimal() else token


def _all_ids(generated: Generated) -> bool:
    keys = [key for top in generated.top for key, _ in top] + generated.tokens
    return bool(keys) and all(isinstance(key, int) for key in keys)


def _number(answer: Answer, value: float | None, where: str) -> float:
    if value is None or math.isnan(value):
        raise _odd(answer, f"logprob at {where} is not a number")
    # -inf has no JSON form; vLLM writes -9999 for it.
    return max(value, -9999.0)


def _odd(answer: Answer, problem: str) -> ServeError:
    return ServeError(f"{answer.url}: answer cannot be used: {problem}", hint="look at the serve's version and log")
