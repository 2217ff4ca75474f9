"""A command is a tuple of pieces; one object is rendered real for the host, or masked for people, logs and JSON."""

import re
import shlex
from dataclasses import dataclass

__all__ = ["Command", "Piece", "Secret", "is_secret_name", "masked", "pair", "real", "shell", "shown"]

_MASK = "****"
# Names whose values are credentials. *_KEY_FILE is a path, and stays readable.
_SECRET_NAME = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY)S?(_|$)", re.IGNORECASE)
_SAFE = re.compile(r"[\w@%+=:,./-]*", re.ASCII)


@dataclass(frozen=True, repr=False)
class Secret:
    """A piece that nobody may read.

    Attributes:
        value: what the host is given.
        shown: what everybody else sees.
    """

    value: str
    shown: str = _MASK

    def __repr__(self) -> str:
        return f"Secret({self.shown!r})"

    def __str__(self) -> str:
        return self.shown

    def __format__(self, spec: str) -> str:
        return format(self.shown, spec)


Piece = str | Secret
Command = tuple[Piece, ...]


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a credential."""
    return _SECRET_NAME.search(name) is not None


def pair(name: str, value: str) -> Piece:
    """`NAME=value` as one piece; secret when the name says so."""
    return Secret(f"{name}={value}", f"{name}={_MASK}") if is_secret_name(name) else f"{name}={value}"


def real(command: Command) -> list[str]:
    """The argument vector that runs."""
    return [piece.value if isinstance(piece, Secret) else piece for piece in command]


def masked(command: Command) -> list[str]:
    """The argument vector that may be shown."""
    return [str(piece) for piece in command]


def shell(command: Command) -> str:
    """The real command as one line for a POSIX shell."""
    return shlex.join(real(command))


def shown(command: Command) -> str:
    """The masked command as one line to read, or to paste."""
    return " ".join(_show(word) for word in masked(command))


def _show(word: str) -> str:
    # `$HOME` stands for a home that is not known (offline); a paste must expand it.
    if "$HOME" in word and _SAFE.fullmatch(word.replace("$HOME", "")):
        return word
    return _MASK if word == _MASK else shlex.quote(word)
