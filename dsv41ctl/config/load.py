"""Reads a cluster file and turns every problem in it into one line that names file, line and key."""

import os
import re
import tomllib
from pathlib import Path

from pydantic import ValidationError

from dsv41ctl.config.model import Cluster
from dsv41ctl.errors import ConfigError

__all__ = ["load_cluster"]

_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)(?::-([^}]*))?\}")


def load_cluster(path: Path) -> Cluster:
    """Reads and validates one cluster file. `${NAME:-default}` in its text is taken from the environment.

    Raises:
        ConfigError: unreadable, not TOML, or not a valid cluster.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="dsv41ctl --cluster FILE ...") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from error
    text = _expand(text, path)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    try:
        return Cluster.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_first_problem(path, text, error)) from error


def _expand(text: str, path: Path) -> str:
    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1], match[2])
        if found is None:
            line = text.count("\n", 0, match.start()) + 1
            raise ConfigError(f"{path}:{line}: variable {match[1]} is not set", hint=f"export {match[1]}=...")
        # `~` in a variable is the operator's home; elsewhere in the file `~/` is the named host's.
        return os.path.expanduser(found).replace("\\", "\\\\").replace('"', '\\"')  # noqa: PTH111

    return _VARIABLE.sub(value, text)


def _first_problem(path: Path, text: str, error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False)
    first = problems[0]
    location = first["loc"]
    key = ".".join(str(part) for part in location) or "the whole file"
    line = _line_of(text, [str(part) for part in location])
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    message = first["msg"].removeprefix("Value error, ")
    where = f"{path}:{line}" if line else str(path)
    return f"{where}: {key}: {message}{more}"


def _line_of(text: str, location: list[str]) -> int | None:
    """The line that names the deepest part of a key, found by walking the tables of the file in order."""
    best: int | None = None
    table: list[str] = []
    seen: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if array := re.match(r"^\[\[\s*([\w.-]+)\s*\]\]", line):
            name = array[1]
            index = seen[name] = seen.get(name, -1) + 1
            table = [*name.split("."), str(index)]
        elif single := re.match(r"^\[\s*([\w.-]+)\s*\]", line):
            parts = single[1].split(".")
            head = parts[0]
            table = [head, str(seen[head]), *parts[1:]] if head in seen else parts
        elif pair := re.match(r"^([\w-]+)\s*=", line):
            if [*table, pair[1]] == location[: len(table) + 1]:
                return number
            continue
        else:
            continue
        if table == location[: len(table)]:
            best = number
    return best
