"""The records of a capture file, schema 1: a header, one record a prompt, a footer. JSON lines."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from dsv41ctl.ab.metrics import Sample

__all__ = [
    "SCHEMA",
    "Capture",
    "Flags",
    "Footer",
    "Forced",
    "Generated",
    "Header",
    "Key",
    "PromptEntry",
    "PromptRecord",
]

SCHEMA = 1

# A token: its id, or its text where the serve gives no ids.
Key = int | str
Logprob = Annotated[float, Field(allow_inf_nan=False)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Flags(_Model):
    """What was asked in every request; two captures compare only when these are equal.

    Attributes:
        token_keys: `ids`, or `text` where the serve cannot name alternatives by id and so loses some.
        prompt_logprobs: None when not asked for, or when the serve has none.
    """

    api: Literal["completions", "chat"]
    temperature: float = 0.0
    thinking: bool = False
    max_tokens: int
    logprobs: int
    prompt_logprobs: int | None
    token_keys: Literal["ids", "text"]
    cache_salt: bool


class PromptEntry(_Model):
    """A prompt, as the header lists it."""

    name: str
    size: int
    sha256: str
    chars: int


class Header(_Model):
    """What a capture is of.

    Attributes:
        run_id: unique to this run, so that a copy of a file is never taken for another run.
        arm: the caller's proof of the configuration.
        priority: as sent, or None; not compared.
    """

    record: Literal["header"] = "header"
    schema_: int = Field(alias="schema")
    run_id: str
    label: str
    arm: dict[str, JsonValue]
    url: str
    model: str
    system_fingerprint: str | None
    version: str | None
    started: str
    flags: Flags
    priority: int | None
    source: str
    degradations: list[str]
    prompts: list[PromptEntry]


class Generated(_Model):
    """The generated tokens, position by position.

    Attributes:
        tokens: chosen token of each position.
        top: the alternatives of each position, the chosen one among them.
    """

    tokens: list[Key]
    logprobs: list[Logprob]
    top: list[list[tuple[Key, Logprob]]]

    @model_validator(mode="after")
    def _equal_lengths(self) -> "Generated":
        if not len(self.tokens) == len(self.logprobs) == len(self.top):
            raise ValueError("tokens, logprobs and top differ in length")
        return self


# Teacher-forced position: the prompt's own token, its logprob, its rank, and the alternatives.
Forced = tuple[int, Logprob, int | None, list[tuple[int, Logprob]]]


class PromptRecord(_Model):
    """One prompt's answer.

    Attributes:
        forced: prompt_logprobs from position 1 on (position 0 has none), or None.
        marks: what stands against trusting this record.
        lookups: Engram lookups during the request, by source.
    """

    record: Literal["prompt"] = "prompt"
    index: int
    name: str
    sha256: str
    excerpt: str
    prompt_tokens: int
    prompt_ids: list[int] | None
    text: str
    finish_reason: str | None
    system_fingerprint: str | None
    generated: Generated
    forced: list[Forced] | None
    salt: str | None
    attempts: int
    seconds: float
    before: Sample | None
    after: Sample | None
    lookups: dict[str, float]
    marks: list[str]


class Footer(_Model):
    """The end of a whole capture; `sha256` is over every byte before this line."""

    record: Literal["footer"] = "footer"
    prompts: int
    generated_tokens: int
    prompt_positions: int
    requests: int
    retries: int
    resumed: int
    seconds: float
    sha256: str


@dataclass(frozen=True)
class Capture:
    """A whole capture, read and verified."""

    path: Path
    header: Header
    prompts: tuple[PromptRecord, ...]
    footer: Footer

    @property
    def marks(self) -> list[str]:
        """All marks, with the prompt that each belongs to."""
        return [f"prompt {record.name}: {mark}" for record in self.prompts for mark in record.marks]

    @property
    def lookups(self) -> Mapping[str, float]:
        """Engram lookups over all prompts, by source."""
        sums: dict[str, float] = {}
        for record in self.prompts:
            for source, count in record.lookups.items():
                sums[source] = sums.get(source, 0.0) + count
        return sums
