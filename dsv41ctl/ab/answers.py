"""What a serve answers, as models: the OpenAI shapes with vLLM's additions. Unknown fields are passed over."""

from pydantic import BaseModel, ConfigDict

__all__ = [
    "ChatAnswer",
    "CompletionAnswer",
    "ModelsAnswer",
    "PromptLogprobs",
    "StreamChunk",
    "TokenizeAnswer",
    "Usage",
    "VersionAnswer",
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Usage(_Model):
    """Token counts of one request."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None


class Logprob(_Model):
    """One entry of prompt_logprobs."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# One entry a prompt position: token id -> Logprob. The first position has none.
PromptLogprobs = list[dict[str, Logprob] | None]


class CompletionLogprobs(_Model):
    """Logprobs of a completion choice."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class CompletionChoice(_Model):
    """A choice of /v1/completions."""

    text: str = ""
    finish_reason: str | None = None
    logprobs: CompletionLogprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class CompletionAnswer(_Model):
    """Answer of /v1/completions."""

    choices: list[CompletionChoice]
    model: str | None = None
    usage: Usage | None = None
    system_fingerprint: str | None = None


class ChatTop(_Model):
    """One alternative of a chat token."""

    token: str
    logprob: float


class ChatToken(ChatTop):
    """One generated chat token."""

    top_logprobs: list[ChatTop] = []


class ChatLogprobs(_Model):
    """Logprobs of a chat choice."""

    content: list[ChatToken] | None = None


class ChatMessage(_Model):
    """The message, or the delta of one."""

    content: str | None = None


class ChatChoice(_Model):
    """A choice of /v1/chat/completions."""

    message: ChatMessage = ChatMessage()
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | None = None


class ChatAnswer(_Model):
    """Answer of /v1/chat/completions; the prompt's data stand beside the choices."""

    choices: list[ChatChoice]
    model: str | None = None
    usage: Usage | None = None
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class StreamChoice(_Model):
    """A choice of one streamed chunk of /v1/completions."""

    text: str = ""
    finish_reason: str | None = None


class StreamChunk(_Model):
    """One streamed chunk; an error may come in place of choices."""

    choices: list[StreamChoice] = []
    usage: Usage | None = None
    error: dict[str, object] | str | None = None


class ModelCard(_Model):
    """One served model."""

    id: str
    max_model_len: int | None = None


class ModelsAnswer(_Model):
    """Answer of /v1/models."""

    data: list[ModelCard]


class TokenizeAnswer(_Model):
    """Answer of /tokenize."""

    count: int
    max_model_len: int | None = None


class VersionAnswer(_Model):
    """Answer of /version."""

    version: str
