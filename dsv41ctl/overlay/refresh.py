"""`python -m dsv41ctl.overlay.refresh`: makes edit set `lab` name the lab image's engram.py as it is now.

Developers run it after they change that file; a test fails until they do.
"""

import hashlib
import re
import sys

from dsv41ctl.lab.layout import IMAGE_ENGRAM, IMAGE_SOURCE
from dsv41ctl.overlay.editset import edit_set_path, parse
from dsv41ctl.overlay.render import render

__all__ = ["main", "refreshed"]


def refreshed(toml: str, sha256: str) -> str:
    """The edit set's text with its one image_sha256 replaced."""
    text, count = re.subn(r"(?m)^image_sha256 = \[[^\]]*\]$", f'image_sha256 = ["{sha256}"]', toml)
    if count != 1:
        raise ValueError(f"edits.toml has {count} lines `image_sha256 = [...]`, expected one")
    return text


def main() -> None:
    """Rewrites the file, after proving that the edits still fit."""
    source = (IMAGE_SOURCE / IMAGE_ENGRAM).read_bytes()
    path = edit_set_path("lab")
    old = path.read_text(encoding="utf-8")
    new = refreshed(old, hashlib.sha256(source).hexdigest())
    render(source, parse("lab", new, source=str(path)))
    if new != old:
        path.write_text(new, encoding="utf-8")
    sys.stderr.write(f"{path}: {'changed' if new != old else 'unchanged'}\n")


if __name__ == "__main__":
    main()
