"""Small things that several tests of this directory do to files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def flip(path: Path, at: int) -> None:
    """Flips one bit of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def leftovers(directory: Path) -> list[str]:
    """Temporary files that a finished or failed write must not leave."""
    return sorted(path.name for path in directory.rglob("*.tmp"))


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes a JSON file in place."""
    data = json.loads(path.read_bytes())
    change(data)
    path.write_text(json.dumps(data))
