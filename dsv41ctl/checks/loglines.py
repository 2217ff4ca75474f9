"""The documented log lines of the reader and the serve, parsed. Pure."""

import re
from dataclasses import dataclass

__all__ = ["Attach", "Counters", "ReaderLog", "parse_log"]

_ATTACH = re.compile(
    r"engram_remote: remote rows from (?P<url>\S+) \((?P<how>[^)]*?), layer (?P<layer>\d+) "
    r"rows \[(?P<start>\d+), (?P<end>\d+)\)(?: of (?P<rows>\d+))?, "
    r"identity (?P<identity>[0-9a-f]{64}), rank (?P<rank>\d+)\)"
)
_STAGING = re.compile(r"engram_remote: Engram remote staging \((?P<rows>\d+) rows\)")
_COUNTERS = re.compile(
    r"engram_remote: layer (?P<layer>\d+) rank (?P<rank>\d+): (?P<pairs>remote_lookups=.*)$", re.MULTILINE
)
_REFUSED = re.compile(r"engram_remote: (?P<text>OPEN refused by the server, status -\d+.*)$", re.MULTILINE)
_FALLBACK = re.compile(r"engram_remote: (?P<text>fallback: .*)$", re.MULTILINE)
_OVERLAY = re.compile(r"engram_remote: overlay (?P<path>\S+) in place of (?P<image>\S+)")


@dataclass(frozen=True)
class Attach:
    """One attach line: what a table of a rank is bound to."""

    url: str
    how: str
    layer: int
    start: int
    end: int
    identity: str
    rank: int


@dataclass(frozen=True)
class Counters:
    """One LOG_S line. Counts since the table was opened; times in microseconds."""

    layer: int
    rank: int
    values: dict[str, float]

    def get(self, name: str) -> int | None:
        """A count, or None where the line lacks it."""
        value = self.values.get(name)
        return None if value is None else int(value)


@dataclass(frozen=True)
class ReaderLog:
    """What the log of one start says.

    Attributes:
        attaches: the last attach line per layer.
        attach_counts: how often each layer attached.
        counters: the last LOG_S line per layer.
        staging_rows: the sizes printed, in order.
        overlay: path of the overlay that the loader put in place of the image's module, or None.
    """

    attaches: dict[int, Attach]
    attach_counts: dict[int, int]
    counters: dict[int, Counters]
    counter_lines: int
    staging_rows: list[int]
    refusals: list[str]
    fallbacks: list[str]
    overlay: str | None


def parse_log(text: str) -> ReaderLog:
    """Reads every line that the design documents; others are passed over."""
    attaches: dict[int, Attach] = {}
    attach_counts: dict[int, int] = {}
    for found in _ATTACH.finditer(text):
        layer = int(found["layer"])
        attaches[layer] = Attach(
            url=found["url"],
            how=found["how"],
            layer=layer,
            start=int(found["start"]),
            end=int(found["end"]),
            identity=found["identity"],
            rank=int(found["rank"]),
        )
        attach_counts[layer] = attach_counts.get(layer, 0) + 1
    counters: dict[int, Counters] = {}
    lines = 0
    for found in _COUNTERS.finditer(text):
        lines += 1
        layer = int(found["layer"])
        counters[layer] = Counters(layer=layer, rank=int(found["rank"]), values=_pairs(found["pairs"]))
    overlays = [found["path"] for found in _OVERLAY.finditer(text)]
    return ReaderLog(
        attaches=attaches,
        attach_counts=attach_counts,
        counters=counters,
        counter_lines=lines,
        staging_rows=[int(found["rows"]) for found in _STAGING.finditer(text)],
        refusals=[found["text"] for found in _REFUSED.finditer(text)],
        fallbacks=[found["text"] for found in _FALLBACK.finditer(text)],
        overlay=overlays[-1] if overlays else None,
    )


def _pairs(text: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals:
            continue
        try:
            values[name] = float(value)
        except ValueError:
            continue
    return values
