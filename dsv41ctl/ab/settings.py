"""What a capture is asked to do, and what it reports."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypedDict, Unpack

from dsv41ctl.config.model import Ab
from dsv41ctl.jsontypes import Json

__all__ = ["CaptureSettings", "CaptureSummary", "Progress"]


class _Overrides(TypedDict, total=False):
    sizes: tuple[int, ...]
    data: Path | None
    field: str
    seed: int
    max_tokens: int
    top_logprobs: int
    prompt_logprobs: int | None
    priority: int | None
    chat: bool
    timeout_s: float
    attempts: int
    settle_s: float
    resume: bool
    overwrite: bool
    arm: Mapping[str, Json]
    api_key: str | None


@dataclass(frozen=True)
class CaptureSettings:
    """One arm to capture.

    Attributes:
        sizes: prompt sizes in tokens, one prompt each.
        data: JSONL with prompts; None: the built-in text.
        prompt_logprobs: alternatives a prompt position; None: no teacher-forced data.
        settle_s: how long to wait for the server to be idle, before and after each request.
        arm: proof of the configuration, kept in the file.
    """

    url: str
    label: str
    out: Path
    model: str | None = None
    sizes: tuple[int, ...] = (64, 8192, 32768)
    data: Path | None = None
    field: str = "text"
    seed: int = 41
    max_tokens: int = 64
    top_logprobs: int = 20
    prompt_logprobs: int | None = 1
    priority: int | None = 10
    chat: bool = False
    timeout_s: float = 1800.0
    attempts: int = 3
    settle_s: float = 3.0
    resume: bool = False
    overwrite: bool = False
    arm: Mapping[str, Json] = dataclasses.field(default_factory=dict)
    api_key: str | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def from_config(
        cls, ab: Ab, *, url: str, label: str, out: Path, model: str | None = None, **over: Unpack[_Overrides]
    ) -> Self:
        """Settings with the cluster file's defaults; what is given here wins."""
        defaults: _Overrides = {
            "sizes": tuple(ab.sizes),
            "data": Path(ab.data).expanduser() if ab.data else None,
            "field": ab.field,
            "max_tokens": ab.max_tokens,
            "top_logprobs": ab.top_logprobs,
            "prompt_logprobs": ab.prompt_logprobs,
            "priority": ab.priority,
            "timeout_s": ab.timeout_s,
        }
        merged: _Overrides = {**defaults, **over}
        return cls(url=url, label=label, out=out, model=model, **merged)


@dataclass(frozen=True)
class Progress:
    """One line for a person, and how far the run is."""

    text: str
    done: int
    total: int


@dataclass(frozen=True)
class CaptureSummary:
    """What was captured.

    Attributes:
        degradations: what this serve cannot do.
        marks: what stands against trusting the capture; compare says inconclusive for those prompts.
        lookups: Engram lookups by source, empty where the serve does not count them.
    """

    path: Path
    run_id: str
    label: str
    model: str
    prompts: int
    generated_tokens: int
    prompt_positions: int
    requests: int
    retries: int
    seconds: float
    sha256: str
    degradations: tuple[str, ...]
    marks: tuple[str, ...]
    lookups: dict[str, float]

    @property
    def clean(self) -> bool:
        """Nothing stands against it."""
        return not self.marks

    def as_json(self) -> dict[str, Json]:
        """Schema 1 of the summary."""
        lookups: dict[str, Json] = dict(self.lookups)
        return {
            "schema": 1,
            "path": str(self.path),
            "run_id": self.run_id,
            "label": self.label,
            "model": self.model,
            "prompts": self.prompts,
            "generated_tokens": self.generated_tokens,
            "prompt_positions": self.prompt_positions,
            "requests": self.requests,
            "retries": self.retries,
            "seconds": self.seconds,
            "sha256": self.sha256,
            "clean": self.clean,
            "marks": list(self.marks),
            "degradations": list(self.degradations),
            "lookups": lookups,
        }
