"""Where the lab keeps things. Pure paths."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["IMAGE_ENGRAM", "IMAGE_SOURCE", "LabLayout"]

# The image as it ships: the directory that stands on the serve's PYTHONPATH.
IMAGE_SOURCE = Path(__file__).resolve().parent / "image"
IMAGE_ENGRAM = Path("lab_engine") / "engram.py"


@dataclass(frozen=True)
class LabLayout:
    """A lab's root directory.

    Attributes:
        root: holds all that the lab makes.
    """

    root: Path

    @property
    def model(self) -> Path:
        """The checkpoint, shared by every host."""
        return self.root / "model"

    @property
    def manifest(self) -> Path:
        """The tables' manifest."""
        return self.model / "manifest.json"

    @property
    def hosts(self) -> Path:
        """Every host's home is below."""
        return self.root / "hosts"

    def host(self, name: str) -> Path:
        """One host's home directory."""
        return self.hosts / name

    @property
    def image(self) -> Path:
        """The installed image: what a container image would hold, as a directory."""
        return self.root / "image"

    @property
    def engram(self) -> Path:
        """The installed image's engram.py."""
        return self.image / IMAGE_ENGRAM
