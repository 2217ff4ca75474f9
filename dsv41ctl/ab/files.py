"""Writes a small file whole or not at all."""

from pathlib import Path

from dsv41ctl.errors import Dsv41Error

__all__ = ["write_whole"]


def write_whole(path: Path, text: str) -> None:
    """Writes beside the file and moves it into place.

    Raises:
        Dsv41Error: the file cannot be written.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise Dsv41Error(f"{path}: {error.strerror}", hint=f"mkdir -p {path.parent}") from error
