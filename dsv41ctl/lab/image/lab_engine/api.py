"""What a request may ask: parsing and refusing, in vLLM's words and shapes."""

from dataclasses import dataclass, field

from lab_engine.engine import Job
from lab_engine.tokenizer import ROLES, VOCAB, chat_tokens, encode

__all__ = ["ApiError", "Call", "Limits", "parse_chat", "parse_completion", "parse_tokenize"]

Body = dict[str, object]


class ApiError(Exception):
    """A refusal: an HTTP status and a message."""

    def __init__(
        self, message: str, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> Body:
        """The JSON of the error."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}


@dataclass(frozen=True)
class Limits:
    """What the server allows."""

    model: str
    max_len: int
    max_logprobs: int = 20


@dataclass
class Call:
    """A request that may run: one job a prompt, and how to shape the answer."""

    chat: bool
    model: str
    jobs: list[Job]
    stream: bool = False
    include_usage: bool = False
    echo: bool = False
    return_token_ids: bool = False
    tokens_as_ids: bool = False
    # Text ahead of each prompt's output when `echo` is on.
    prompts: list[str] = field(default_factory=list)


def parse_completion(body: Body, limits: Limits) -> Call:
    """A /v1/completions request."""
    _check_model(body, limits)
    prompts = _prompts(body.get("prompt"), _flag(body, "add_special_tokens", default=True))
    logprobs = _count(body, "logprobs", limits, "logprobs")
    max_tokens = _integer(body, "max_tokens", 16, least=0)
    echo = _flag(body, "echo")
    stream = _flag(body, "stream")
    if max_tokens == 0 and not echo:
        raise ApiError("max_tokens must be at least 1, got 0.", param="max_tokens")
    if echo and stream:
        raise ApiError("echo with stream is not supported by this server.", param="echo")
    jobs = [_job(body, tokens, max_tokens, logprobs, limits) for tokens in prompts]
    call = _call(body, limits, jobs, chat=False)
    call.echo = echo
    return call


def parse_chat(body: Body, limits: Limits) -> Call:
    """A /v1/chat/completions request."""
    _check_model(body, limits)
    tokens = chat_tokens(_messages(body), add_generation_prompt=_flag(body, "add_generation_prompt", default=True))
    wanted = _flag(body, "logprobs")
    top = _count(body, "top_logprobs", limits, "top_logprobs")
    if top and not wanted:
        raise ApiError("when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs")
    name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    max_tokens = _integer(body, name, limits.max_len - len(tokens), least=1 if name in body else -limits.max_len)
    job = _job(body, tokens, max_tokens, (top or 0) if wanted else None, limits)
    return _call(body, limits, [job], chat=True)


def parse_tokenize(body: Body, limits: Limits) -> list[int]:
    """A /tokenize request: a `prompt` or `messages`."""
    _check_model(body, limits)
    if "messages" in body:
        return chat_tokens(_messages(body), add_generation_prompt=_flag(body, "add_generation_prompt", default=True))
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise ApiError("prompt: Input should be a valid string", param="prompt")
    return encode(prompt, add_special_tokens=_flag(body, "add_special_tokens", default=True))


def _check_model(body: Body, limits: Limits) -> None:
    model = body.get("model", limits.model)
    if model != limits.model:
        raise ApiError(f"The model `{model}` does not exist.", status=404, kind="NotFoundError", param="model")


def _call(body: Body, limits: Limits, jobs: list[Job], *, chat: bool) -> Call:
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise ApiError("Parameter 'cache_salt' must be a non-empty string if provided.", param="cache_salt")
    _integer(body, "priority", 0, least=-(1 << 62))
    if _integer(body, "n", 1, least=1) != 1:
        raise ApiError("n must be 1 on this server.", param="n")
    stream = _flag(body, "stream")
    if stream and body.get("prompt_logprobs") is not None:
        raise ApiError("`prompt_logprobs` are not available when `stream=True`.", param="prompt_logprobs")
    options = body.get("stream_options")
    if options is not None and not stream:
        raise ApiError("Stream options can only be defined when `stream=True`.", param="stream_options")
    if options is not None and not isinstance(options, dict):
        raise ApiError("stream_options: Input should be a valid dictionary", param="stream_options")
    return Call(
        chat=chat,
        model=limits.model,
        jobs=jobs,
        stream=stream,
        include_usage=bool(options and options.get("include_usage")),
        return_token_ids=_flag(body, "return_token_ids"),
        tokens_as_ids=_flag(body, "return_tokens_as_token_ids"),
    )


def _job(body: Body, tokens: list[int], max_tokens: int, logprobs: int | None, limits: Limits) -> Job:
    if len(tokens) + max(max_tokens, 1) > limits.max_len and not (max_tokens == 0 and len(tokens) <= limits.max_len):
        raise ApiError(
            f"This model's maximum context length is {limits.max_len} tokens. However, you requested "
            f"{max(max_tokens, 0)} output tokens and your prompt contains {len(tokens)} input tokens, for a total of "
            f"{len(tokens) + max(max_tokens, 0)} tokens. Please reduce the length of the input prompt or the number "
            "of requested output tokens.",
            param="input_tokens",
        )
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    ends = body.get("stop_token_ids") or []
    if not isinstance(stop, list) or not all(isinstance(word, str) and word for word in stop):
        raise ApiError("stop cannot contain an empty string.", param="stop")
    if not isinstance(ends, list) or not all(_is_token(token) for token in ends):
        raise ApiError("stop_token_ids must be a list of token ids.", param="stop_token_ids")
    temperature = _number(body, "temperature", 1.0, 0.0, float("inf"))
    top_p = _number(body, "top_p", 1.0, 0.0, 1.0)
    if top_p == 0:
        raise ApiError("top_p must be in (0, 1], got 0.0.", param="top_p")
    seed = body.get("seed")
    return Job(
        prompt=tokens,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=_integer(body, "top_k", 0, least=-1),
        seed=None if seed is None else abs(_integer(body, "seed", 0, least=-(1 << 63))),
        stop=tuple(stop),
        stop_token_ids=tuple(ends),
        ignore_eos=_flag(body, "ignore_eos"),
        min_tokens=_integer(body, "min_tokens", 0, least=0),
        logprobs=logprobs,
        prompt_logprobs=_count(body, "prompt_logprobs", limits, "prompt logprobs"),
    )


def _prompts(prompt: object, special: bool) -> list[list[int]]:
    one_list = isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt)
    if isinstance(prompt, str) or one_list:
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise ApiError("You must provide a prompt: a string, or token ids, or a list of either.", param="prompt")
    found = []
    for item in prompt:
        if isinstance(item, str):
            tokens = encode(item, add_special_tokens=special)
        elif isinstance(item, list) and all(type(token) is int for token in item):
            wrong = next((token for token in item if not _is_token(token)), None)
            if wrong is not None:
                raise ApiError(f"Token id {wrong} is out of vocabulary", param="prompt")
            tokens = list(item)
        else:
            raise ApiError("prompt: a string or a list of token ids, in each place.", param="prompt")
        if not tokens:
            raise ApiError("The decoder prompt cannot be empty", param="prompt")
        found.append(tokens)
    return found


def _messages(body: Body) -> list[tuple[str, str]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError("messages: Input should be a non-empty list", param="messages")
    found = []
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ROLES:
            raise ApiError(f"messages: unknown role {role!r}; this server knows {', '.join(ROLES)}", param="messages")
        content = message.get("content") or ""
        if isinstance(content, list):
            parts = [part.get("text") if isinstance(part, dict) else None for part in content]
            if not all(isinstance(part, str) for part in parts):
                raise ApiError("messages: only text parts are served here", param="messages")
            content = "".join(parts)
        if not isinstance(content, str):
            raise ApiError("messages: content is a text or a list of text parts", param="messages")
        found.append((role, content))
    return found


def _is_token(value: object) -> bool:
    return type(value) is int and 0 <= value < VOCAB


def _flag(body: Body, name: str, *, default: bool = False) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ApiError(f"{name}: Input should be a valid boolean", param=name)
    return value


def _integer(body: Body, name: str, default: int, *, least: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise ApiError(f"{name}: Input should be a valid integer", param=name)
    if value < least:
        raise ApiError(f"{name} must be at least {least}, got {value}.", param=name)
    return value


def _number(body: Body, name: str, default: float, least: float, most: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if type(value) not in (int, float):
        raise ApiError(f"{name}: Input should be a valid number", param=name)
    if not least <= value <= most:
        raise ApiError(f"{name} must be in [{least:g}, {most:g}], got {value}.", param=name)
    return float(value)


def _count(body: Body, name: str, limits: Limits, words: str) -> int | None:
    if body.get(name) is None:
        return None
    value = _integer(body, name, 0, least=-(1 << 62))
    if value < 0:
        raise ApiError(f"`{name}` must be a positive value.", param=name)
    if value > limits.max_logprobs:
        raise ApiError(
            f"Requested {words} of {value}, which is greater than max allowed: {limits.max_logprobs}", param=name
        )
    return value
