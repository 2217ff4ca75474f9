"""Prompts of a given size in tokens: a built-in text made at run time, or the lines of a JSONL file."""

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dsv41ctl.errors import UsageError

__all__ = ["Builtin", "Jsonl", "Prompt", "Source", "builtin_text", "fit_exactly", "fit_roughly", "read_jsonl"]

_DETERMINERS = ("the", "a", "every", "this", "no", "another", "each", "some")
_ADJECTIVES = (
    "quiet", "late", "northern", "plain", "heavy", "careful", "second", "narrow", "copper", "public",
    "early", "hollow", "steady", "foreign", "brittle", "open", "distant", "mild", "formal", "uneven",
)  # fmt: skip
_NOUNS = (
    "harbour", "clerk", "ledger", "valley", "engine", "witness", "bridge", "library", "contract", "river",
    "captain", "market", "orchard", "signal", "archive", "winter", "teacher", "machine", "border", "garden",
    "court", "journal", "kitchen", "tower", "railway", "theory", "village", "letter", "compass", "furnace",
)  # fmt: skip
_VERBS = (
    "carries", "describes", "repairs", "follows", "measures", "rejects", "opens", "borrows", "crosses", "records",
    "supports", "forgets", "divides", "answers", "moves", "collects", "denies", "paints", "signs", "weighs",
)  # fmt: skip
_ADVERBS = ("slowly", "again", "without delay", "by hand", "in part", "twice", "at dawn", "as agreed")
_LINKS = ("because", "while", "although", "before", "and", "but", "so that", "unless")
_SYLLABLES = ("ka", "lo", "mer", "ti", "sun", "vor", "pel", "an", "dri", "os", "que", "bar", "ni", "thel", "gu")


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        name: how reports call it.
        size: the size in tokens that was asked for.
    """

    name: str
    size: int
    text: str

    @property
    def sha256(self) -> str:
        """Digest of the text, UTF-8."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class Source(Protocol):
    """Where the text of prompts comes from."""

    def text(self, index: int, chars: int) -> str:
        """At least `chars` characters for prompt number `index`, or all there are. Longer calls only append."""
        ...

    def describe(self) -> str:
        """One word or path, for the capture's header."""
        ...


class _Grammar:
    """Sentences from a seed. `random.Random.random` alone is used: its sequence is fixed across Python versions."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - reproducible text, no secret

    def _pick(self, words: Sequence[str]) -> str:
        return words[int(self._random.random() * len(words))]

    def _name(self) -> str:
        return "".join(self._pick(_SYLLABLES) for _ in range(2 + int(self._random.random() * 2))).capitalize()

    def _phrase(self) -> str:
        chance = self._random.random()
        if chance < 0.2:
            return self._name()
        if chance < 0.6:
            return f"{self._pick(_DETERMINERS)} {self._pick(_ADJECTIVES)} {self._pick(_NOUNS)}"
        return f"{self._pick(_DETERMINERS)} {self._pick(_NOUNS)}"

    def _clause(self) -> str:
        words = f"{self._phrase()} {self._pick(_VERBS)} {self._phrase()}"
        return f"{words} {self._pick(_ADVERBS)}" if self._random.random() < 0.35 else words

    def sentence(self) -> str:
        chance = self._random.random()
        if chance < 0.12:
            number = int(self._random.random() * 9000) + 10
            text = f"in {number} {self._clause()}"
        elif chance < 0.5:
            text = f"{self._clause()} {self._pick(_LINKS)} {self._clause()}"
        else:
            text = self._clause()
        return text[0].upper() + text[1:] + (".\n\n" if self._random.random() < 0.1 else ". ")


def builtin_text(seed: int, chars: int) -> str:
    """At least `chars` characters of grammatical nonsense; a longer text of one seed only appends."""
    grammar = _Grammar(seed)
    parts: list[str] = []
    length = 0
    while length < chars:
        parts.append(grammar.sentence())
        length += len(parts[-1])
    return "".join(parts)


@dataclass(frozen=True)
class Builtin:
    """The built-in text. Each prompt has a seed of its own, so no two share a prefix."""

    seed: int = 41

    def text(self, index: int, chars: int) -> str:
        """See Source."""
        return builtin_text(self.seed * 100_003 + index, chars)

    def describe(self) -> str:
        """See Source."""
        return f"built-in text, seed {self.seed}"


@dataclass(frozen=True)
class Jsonl:
    """Records of a JSONL file, joined. Prompt i begins at another record, so that no two share a prefix."""

    path: Path
    field: str
    records: tuple[str, ...]

    def text(self, index: int, chars: int) -> str:
        """See Source."""
        first = index % len(self.records)
        parts: list[str] = []
        length = 0
        for record in (*self.records[first:], *self.records[:first]):
            if length >= chars:
                break
            parts.append(record)
            length += len(record) + 2
        return "\n\n".join(parts)

    def describe(self) -> str:
        """See Source."""
        digest = hashlib.sha256("\0".join(self.records).encode()).hexdigest()
        return f"{self.path.name} field {self.field}, {len(self.records)} records, sha256 {digest[:16]}"


def read_jsonl(path: Path, field: str) -> Jsonl:
    """Reads the texts of a JSONL file.

    Raises:
        UsageError: unreadable, a line that is not a JSON object with a text in `field`, or no text at all.
    """
    hint = "give --data a JSONL file and --field its text field, or leave --data out for the built-in text"
    records: list[str] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    records.append(_field_of(line, field, f"{path}:{number}", hint))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}:{len(records) + 1}: not UTF-8 ({error.reason})", hint=hint) from error
    if not any(records):
        raise UsageError(f"{path}: no record with text in field `{field}`", hint=hint)
    return Jsonl(path, field, tuple(record for record in records if record))


def _field_of(line: str, field: str, where: str, hint: str) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where}: not JSON: {error}", hint=hint) from error
    if not isinstance(record, dict):
        raise UsageError(f"{where}: not a JSON object", hint=hint)
    if field not in record:
        raise UsageError(f"{where}: no field `{field}` (has: {', '.join(sorted(record)) or 'none'})", hint=hint)
    text = record[field]
    if not isinstance(text, str):
        raise UsageError(f"{where}: field `{field}` is {type(text).__name__}, not text", hint=hint)
    return text


def fit_exactly(source: Source, index: int, size: int, count: Callable[[str], int]) -> Prompt:
    """The longest beginning of the source's text that has at most `size` tokens, by asking a tokenizer.

    Raises:
        UsageError: the source is too short, or no beginning is short enough.
    """
    chars = max(size * 6, 16)
    while True:
        text = source.text(index, chars)
        tokens = count(text)
        if tokens >= size:
            break
        if len(text) < chars:
            raise _too_short(source, size, tokens)
        chars *= 2
    low, low_tokens, high, high_tokens = 0, 0, len(text), tokens
    if high_tokens == size:
        low = high
    # Regula falsi finds the place in a few calls; every third guess bisects, so that it always ends.
    step = 0
    while high - low > 1:
        step += 1
        guess = low + (size - low_tokens) * (high - low) // max(1, high_tokens - low_tokens)
        middle = (low + high) // 2 if step % 3 == 0 else min(max(guess, low + 1), high - 1)
        tokens = count(text[:middle])
        if tokens > size:
            high, high_tokens = middle, tokens
            continue
        low, low_tokens = middle, tokens
        if tokens == size:
            break
    if low == 0:
        raise UsageError(
            f"no prompt of {size} tokens: one character already has more", hint="--sizes with larger numbers"
        )
    return Prompt(str(size), size, text[:low])


def fit_roughly(source: Source, index: int, size: int, count: Callable[[str], int]) -> Prompt:
    """A beginning of about `size` tokens, scaled from one measured sample: for a serve without /tokenize.

    Raises:
        UsageError: the source is too short.
    """
    sample = source.text(index, 2000)[:2000]
    per_token = len(sample) / max(1, count(sample))
    chars = max(1, int(size * per_token))
    text = source.text(index, chars)
    if len(text) < chars:
        raise _too_short(source, size, int(len(text) / per_token))
    return Prompt(str(size), size, text[:chars])


def _too_short(source: Source, size: int, tokens: int) -> UsageError:
    return UsageError(
        f"{source.describe()}: {tokens} tokens of text, {size} needed",
        hint="--sizes with smaller numbers, or more text in --data",
    )
