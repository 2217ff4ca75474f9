"""The lookups that find what a random sample misses: borders of ranges, heads and pages, and odd batches of ids."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

PAGE = 4096
SIZES = (1, 2, 12, 24, 144, 288, 4096)
DEAD = -1


@dataclass(frozen=True)
class Range:
    """What a rank owns of a layer, and where the planes begin in the shard.

    Attributes:
        heads: (first row, last row) of each of the rank's heads.
        planes: (offset in the file, bytes of a row) of each plane.
    """

    start: int
    end: int
    heads: tuple[tuple[int, int], ...]
    planes: tuple[tuple[int, int], ...]


def head_range(head_sizes: list[int], rank: int, tp: int) -> tuple[int, int, tuple[tuple[int, int], ...]]:
    """Start, end and heads of a rank: whole heads, ceil(heads / tp) of them.

    Raises:
        ValueError: no such rank, or one without heads.
    """
    part = -(-len(head_sizes) // tp) if tp > 0 else 0
    if not 0 <= rank < tp or (tp - 1) * part >= len(head_sizes):
        raise ValueError(f"rank {rank} of tp {tp} owns none of {len(head_sizes)} heads")
    at = sum(head_sizes[: rank * part])
    heads = []
    for size in head_sizes[rank * part : (rank + 1) * part]:
        heads.append((at, at + size - 1))
        at += size
    return heads[0][0], at, tuple(heads)


def straddling(where: Range, offset: int, width: int, wanted: int = 16) -> list[int]:
    """Rows whose bytes lie in two pages of the file; where none do, rows at a page's end and beginning.

    Taken from the beginning, the middle and the end of the range.
    """
    found: list[int] = []
    per_page = max(1, PAGE // width)
    for origin in (where.start, (where.start + where.end) // 2, where.end - (wanted + 1) * per_page):
        page = (offset + max(origin, where.start) * width) // PAGE + 1
        for border in range(page, page + wanted):
            row = (border * PAGE - 1 - offset) // width
            found += [one for one in (row, row + 1) if where.start <= one < where.end]
    return sorted(set(found))


def corner_cases(where: Range, max_rows: int, seed: int) -> Iterator[tuple[str, list[int]]]:
    """Names and ids of the lookups; none longer than max_rows."""
    for name, ids in _all_cases(where, max_rows, random.Random(seed)):  # noqa: S311 - a sample, not a secret
        for at in range(0, len(ids), max_rows):
            yield name, ids[at : at + max_rows]


def _all_cases(where: Range, max_rows: int, rng: random.Random) -> Iterator[tuple[str, list[int]]]:
    start, end = where.start, where.end

    def some(count: int) -> list[int]:
        return [rng.randrange(start, end) for _ in range(count)]

    yield "first row of the range", [start]
    yield "last row of the range", [end - 1]
    yield "first and last row of every head", [row for head in where.heads for row in head]
    borders = [last for _, last in where.heads[:-1]]
    if borders:
        yield (
            "neighbours across head borders",
            [row for last in borders for row in (last - 1, last, last + 1, last + 2)],
        )
    for offset, width in where.planes:
        yield f"rows across pages, {width} bytes wide", straddling(where, offset, width)
    yield "all the same id", [rng.randrange(start, end)] * min(288, max_rows)
    run = sorted(set(some(min(288, max_rows))))
    yield "ascending", run
    yield "descending", run[::-1]
    middle = rng.randrange(start, max(start + 1, end - 144))
    yield "consecutive", list(range(middle, min(end, middle + 144)))
    few = some(10)
    yield "duplicates", [rng.choice(few) for _ in range(288)]
    yield "dead ids mixed in", [DEAD if at % 3 == 1 else row for at, row in enumerate(some(288))]
    yield "dead ids first and last", [DEAD, *some(10), DEAD]
    yield "dead ids only", [DEAD] * 24
    for count in (*(size for size in SIZES if size < max_rows), max_rows):
        yield f"{count} ids", some(count)


def sample(where: Range, count: int, seed: int, max_rows: int) -> Iterator[list[int]]:
    """Distinct random rows in batches; the whole range, in order, when it has no more than `count` rows."""
    if count >= where.end - where.start:
        for at in range(where.start, where.end, max_rows):
            yield list(range(at, min(where.end, at + max_rows)))
        return
    rows = random.Random(seed).sample(range(where.start, where.end), count)  # noqa: S311
    for at in range(0, count, max_rows):
        yield rows[at : at + max_rows]
