"""What a verb did, step by step."""

from dataclasses import dataclass

from dsv41ctl.jsontypes import Json
from dsv41ctl.plan import Word

__all__ = ["Outcome", "StepResult"]


@dataclass(frozen=True)
class StepResult:
    """One step, done or not.

    Attributes:
        command: masked, as one line.
        argv: masked, for steps that are one command.
    """

    host: str
    title: str
    word: Word
    seconds: float = 0.0
    detail: str = ""
    command: str | None = None
    argv: tuple[str, ...] | None = None

    def as_json(self) -> dict[str, Json]:
        """For JSON output and the journal."""
        document: dict[str, Json] = {
            "host": self.host,
            "title": self.title,
            "word": self.word.value,
            "seconds": round(self.seconds, 3),
            "detail": self.detail,
            "command": self.command,
        }
        if self.argv is not None:
            document["argv"] = list(self.argv)
        return document


@dataclass(frozen=True)
class Outcome:
    """All steps of one verb."""

    verb: str
    steps: tuple[StepResult, ...]

    @property
    def changed(self) -> int:
        """Steps that changed something."""
        return sum(step.word is Word.CHANGED for step in self.steps)

    @property
    def unchanged(self) -> int:
        """Steps that found all as wanted."""
        return sum(step.word is Word.UNCHANGED for step in self.steps)

    @property
    def word(self) -> Word:
        """The whole verb in one of the three words."""
        words = {step.word for step in self.steps}
        for word in (Word.CHANGED, Word.WOULD):
            if word in words:
                return word
        return Word.UNCHANGED

    def as_json(self) -> dict[str, Json]:
        """Schema 1."""
        return {
            "schema": 1,
            "verb": self.verb,
            "word": self.word.value,
            "steps": [step.as_json() for step in self.steps],
        }
