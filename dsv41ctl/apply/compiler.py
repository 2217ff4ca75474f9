"""What a build's output comes down to."""

import re

__all__ = ["first_error"]

_ERROR = re.compile(r"undefined reference|\b(fatal )?error\b[: ]|^CMake Error", re.IGNORECASE)
_TAIL_LINES = 20


def first_error(output: str) -> str:
    """The first compiler error, or the end of the output when there is none."""
    lines = [line.strip() for line in output.strip().splitlines()]
    return next((line for line in lines if _ERROR.search(line)), "\n".join(lines[-_TAIL_LINES:]))
