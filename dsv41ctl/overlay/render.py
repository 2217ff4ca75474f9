"""Renders an overlay from an image's file and an edit set, and says why where it cannot. Pure."""

import difflib
import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from dsv41ctl.errors import CheckFailed
from dsv41ctl.overlay.editset import MARK, Edit, EditSet, load_edit_sets

__all__ = [
    "MARK",
    "AnchorProblem",
    "Derived",
    "EditsDoNotFit",
    "Rendered",
    "UnknownImage",
    "anchor_problems",
    "derive",
    "render",
]


@dataclass(frozen=True)
class AnchorProblem:
    """Why an edit does not fit a file.

    Attributes:
        edit: its name.
        lines: where its anchor matches; empty: nowhere.
        reason: the problem in words, with line numbers.
    """

    edit: str
    lines: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Rendered:
    """An overlay.

    Attributes:
        text: the file's content.
        sha256: of the text.
        image_sha256: of the image's file it was made from.
        diff: unified, from the image's file to the text.
        module: the module that the overlay replaces.
        edit_set: the set's name.
    """

    text: str
    sha256: str
    image_sha256: str
    diff: str
    module: str
    edit_set: str

    @property
    def data(self) -> bytes:
        """The file's bytes."""
        return self.text.encode()


@dataclass(frozen=True)
class Derived:
    """How one edit set fits a file.

    Attributes:
        edit_set: its name.
        known: whether the set names the file's sha256.
        problems: every edit that does not fit, and why.
    """

    edit_set: str
    module: str
    known: bool
    problems: tuple[AnchorProblem, ...]

    @property
    def fits(self) -> bool:
        """Whether every edit fits, be the image known or not."""
        return not self.problems


class UnknownImage(CheckFailed):
    """An edit set was not made for this file.

    Args:
        edit_set: the set.
        sha256: the file's.
    """

    def __init__(self, edit_set: EditSet, sha256: str) -> None:
        known = ", ".join(edit_set.image_sha256)
        super().__init__(
            f"edit set {edit_set.name} was not made for an image file with sha256 {sha256}; it knows {known}",
            hint="dsv41ctl overlay derive FILE",
        )
        self.sha256 = sha256
        self.known = edit_set.image_sha256


class EditsDoNotFit(CheckFailed):
    """Edits whose anchor is not in the file exactly once, or that touch the same text.

    Args:
        edit_set: the set.
        problems: at least one.
    """

    def __init__(self, edit_set: EditSet, problems: tuple[AnchorProblem, ...]) -> None:
        words = "; ".join(f"edit {problem.edit}: {problem.reason}" for problem in problems)
        super().__init__(f"edit set {edit_set.name} does not fit: {words}", hint="dsv41ctl overlay derive FILE")
        self.problems = problems


def render(source: bytes, edit_set: EditSet) -> Rendered:
    """Renders the overlay of an image's file.

    Raises:
        UnknownImage: the set does not name the file's sha256.
        EditsDoNotFit: an anchor is not there exactly once.
        CheckFailed: the file is not UTF-8.
    """
    image_sha256 = hashlib.sha256(source).hexdigest()
    if image_sha256 not in edit_set.image_sha256:
        raise UnknownImage(edit_set, image_sha256)
    original = _decode(source)
    problems = anchor_problems(original, edit_set.edits)
    if problems:
        raise EditsDoNotFit(edit_set, problems)
    head = f"# {MARK} module: {edit_set.module}\n# {MARK} edit set: {edit_set.name}, image sha256 {image_sha256}\n"
    text = head + _apply(original, edit_set.edits)
    return Rendered(
        text=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        image_sha256=image_sha256,
        diff=_diff(original, text, edit_set),
        module=edit_set.module,
        edit_set=edit_set.name,
    )


def derive(source: bytes, edit_sets: Iterable[EditSet] | None = None) -> list[Derived]:
    """Tries every edit set on a file, known or not, and says which anchor failed where.

    Args:
        source: the image's file.
        edit_sets: the sets to try; those that ship by default.
    """
    sha256 = hashlib.sha256(source).hexdigest()
    text = _decode(source)
    return [
        Derived(
            edit_set=edit_set.name,
            module=edit_set.module,
            known=sha256 in edit_set.image_sha256,
            problems=anchor_problems(text, edit_set.edits),
        )
        for edit_set in (load_edit_sets() if edit_sets is None else edit_sets)
    ]


def anchor_problems(text: str, edits: Iterable[Edit]) -> tuple[AnchorProblem, ...]:
    """Every edit that cannot be made in this text: no match, several, or a match that another edit also changes."""
    problems: list[AnchorProblem] = []
    spans: list[tuple[int, int, str]] = []
    for edit in edits:
        found = _occurrences(text, edit.anchor)
        lines = tuple(_line(text, at) for at in found)
        if len(found) == 1:
            spans.append((found[0], found[0] + len(edit.anchor), edit.name))
        elif not found:
            problems.append(AnchorProblem(edit.name, (), f"anchor not found{_nearest(text, edit.anchor)}"))
        else:
            where = ", ".join(map(str, lines))
            problems.append(AnchorProblem(edit.name, lines, f"anchor matches {len(found)} times, at lines {where}"))
    spans.sort()
    for (_, end, first), (begin, _, second) in itertools.pairwise(spans):
        if begin < end:
            line = _line(text, begin)
            problems.append(AnchorProblem(second, (line,), f"changes the same text as edit {first}, at line {line}"))
    return tuple(problems)


def _decode(source: bytes) -> str:
    try:
        return source.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckFailed(f"the image file is not UTF-8 at byte {error.start}") from error


def _apply(text: str, edits: Iterable[Edit]) -> str:
    # From the end backwards, so that earlier places stay where they are.
    for edit in sorted(edits, key=lambda edit: text.index(edit.anchor), reverse=True):
        at = text.index(edit.anchor)
        text = text[:at] + edit.replacement + text[at + len(edit.anchor) :]
    return text


def _diff(original: str, text: str, edit_set: EditSet) -> str:
    name = edit_set.module.replace(".", "/") + ".py"
    lines = difflib.unified_diff(
        original.splitlines(keepends=True), text.splitlines(keepends=True), f"image/{name}", f"overlay/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _occurrences(text: str, anchor: str) -> list[int]:
    # Overlapping matches count too: either could have been meant.
    found: list[int] = []
    at = text.find(anchor)
    while at >= 0:
        found.append(at)
        at = text.find(anchor, at + 1)
    return found


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _nearest(text: str, anchor: str) -> str:
    """Where most of the anchor's first lines are, for a person who looks for what changed."""
    wanted = [line.strip() for line in anchor.splitlines()]
    have = [line.strip() for line in text.splitlines()]
    first = next(index for index, line in enumerate(wanted) if line)
    best, line = 0, 0
    for at, candidate in enumerate(have):
        if candidate != wanted[first]:
            continue
        same = 1
        while first + same < len(wanted) and at + same < len(have) and have[at + same] == wanted[first + same]:
            same += 1
        if same > best:
            best, line = same, at + 1
    if not best:
        return "; none of it: its first line is nowhere in the file"
    if first + best >= len(wanted):
        return f"; line {line} has the same words with other white space"
    return f"; it begins at line {line} and differs from line {line + best} on"
