"""Files that appear whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dsv41ctl.errors import Dsv41Error

__all__ = ["atomic_file", "atomic_write"]


@contextlib.contextmanager
def atomic_file(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Opens a temporary file beside `path`; at the end it is synced and takes the name, on an error it is removed.

    Raises:
        Dsv41Error: the directory or the disk refuses; the old file, if any, is as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise Dsv41Error(f"cannot write {path}: {error.strerror}") from error
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        raise Dsv41Error(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replaces a file's content, whole or not at all."""
    with atomic_file(path, mode=mode) as file:
        file.write(data)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
