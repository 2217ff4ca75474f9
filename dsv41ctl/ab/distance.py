"""How far two answers to one prompt are apart, position by position. Pure.

The first answer is the reference: |Δ| is the change of the logprob of *its* token.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dsv41ctl.ab.records import Generated, Key, PromptRecord

__all__ = [
    "Divergence",
    "Figures",
    "Pair",
    "Section",
    "Spot",
    "compare_records",
    "divergence",
    "figures",
    "kl",
    "margin",
    "quantile",
]

# The least mass a bucket is given, so that one side's empty bucket makes KL large and not infinite.
_FLOOR = 1e-12


@dataclass(frozen=True)
class Spot:
    """One position of an answer, from either section."""

    token: Key
    logprob: float
    top: Mapping[Key, float]
    rank: int | None = None


@dataclass(frozen=True)
class Section:
    """The distances over the positions of one section.

    Attributes:
        places: position in prompt plus generated text.
        deltas: |Δ logprob| of the reference token.
        censored: positions where the other side does not list the reference token: there its smallest listed
            logprob stands in, and the true |Δ| is at least as large.
        agree: positions where both have the same most likely token (ties count when they share one).
        ranked: positions where that could be told.
        rank_changes: by how many ranks the reference token moved, where it moved.
    """

    places: tuple[int, ...] = ()
    deltas: tuple[float, ...] = ()
    kls: tuple[float, ...] = ()
    censored: int = 0
    agree: int = 0
    ranked: int = 0
    rank_changes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Divergence:
    """Where the generated tokens part.

    Attributes:
        position: 0 is the first generated token.
        token_a: None: that side had ended.
        margin_a: logprob of the most likely token less that of the next; None where unknown.
    """

    position: int
    token_a: str | None
    token_b: str | None
    margin_a: float | None
    margin_b: float | None


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt."""

    a: str
    b: str
    identical: bool
    divergence: Divergence | None
    generated: Section
    forced: Section


@dataclass(frozen=True)
class Figures:
    """A summary of one or more sections. None: no positions, so no figure."""

    positions: int
    nonzero: int
    censored: int
    mean: float | None
    median: float | None
    p99: float | None
    max: float | None
    kl_mean: float | None
    kl_max: float | None
    top1_agreement: float | None
    rank_changes: int
    rank_change_max: int


def quantile(values: Sequence[float], share: float) -> float:
    """A quantile of sorted values, linear between the nearest two."""
    place = share * (len(values) - 1)
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


def kl(p: Mapping[Key, float], q: Mapping[Key, float]) -> float:
    """KL(P‖Q) over the union of both lists plus one bucket for the rest, in nats.

    A token that one side does not list has there at most that side's smallest listed probability, and has to
    share the unlisted mass; it is given the most that both allow, so the result does not exaggerate.
    """
    keys = sorted({*p, *q}, key=lambda key: (isinstance(key, str), key))
    left, right = _spread(p, keys), _spread(q, keys)
    return math.fsum(a * math.log(a / b) for a, b in zip(left, right, strict=True))


def _spread(listed: Mapping[Key, float], keys: Sequence[Key]) -> list[float]:
    known = {key: math.exp(value) for key, value in listed.items()}
    rest = max(0.0, 1.0 - math.fsum(known.values()))
    missing = sum(1 for key in keys if key not in known)
    share = min(min(known.values(), default=1.0), rest / (missing + 1))
    masses = [known.get(key, share) for key in keys]
    masses.append(max(0.0, rest - missing * share))
    masses = [max(mass, _FLOOR) for mass in masses]
    total = math.fsum(masses)
    return [mass / total for mass in masses]


def margin(top: Mapping[Key, float]) -> float | None:
    """The most likely token's logprob less the next one's."""
    ordered = sorted(top.values(), reverse=True)
    return ordered[0] - ordered[1] if len(ordered) > 1 else None


def _spots(generated: Generated) -> Iterator[Spot]:
    for token, logprob, top in zip(generated.tokens, generated.logprobs, generated.top, strict=True):
        yield Spot(token, logprob, dict(top))


def _forced_spots(record: PromptRecord) -> Iterator[Spot]:
    for token, logprob, rank, top in record.forced or ():
        yield Spot(token, logprob, dict(top), rank)


def divergence(a: Generated, b: Generated) -> Divergence | None:
    """The first position where the generated tokens differ, or where one side has ended."""
    for place in range(max(len(a.tokens), len(b.tokens))):
        token_a, margin_a = _at(a, place)
        token_b, margin_b = _at(b, place)
        if token_a != token_b:
            return Divergence(place, _show(token_a), _show(token_b), margin_a, margin_b)
    return None


def _at(generated: Generated, place: int) -> tuple[Key | None, float | None]:
    if place >= len(generated.tokens):
        return None, None
    return generated.tokens[place], margin(dict(generated.top[place]))


def _show(token: Key | None) -> str | None:
    return None if token is None else f"#{token}" if isinstance(token, int) else token


def _rank(spot: Spot, token: Key, logprob: float) -> int | None:
    """1 is the most likely; equal logprobs share a rank, since their order is arbitrary."""
    if not spot.top:
        return None
    if token not in spot.top:
        return len(spot.top) + 1
    return 1 + sum(1 for value in spot.top.values() if value > logprob)


def _best(top: Mapping[Key, float]) -> set[Key]:
    most = max(top.values(), default=0.0)
    return {key for key, value in top.items() if value == most}


def _section(pairs: Iterable[tuple[int, Spot, Spot]]) -> Section:
    places: list[int] = []
    deltas: list[float] = []
    kls: list[float] = []
    changes: list[int] = []
    censored = agree = ranked = 0
    for place, a, b in pairs:
        if a.token == b.token:
            other: float | None = b.logprob
        else:
            other = b.top.get(a.token)
        if other is None:
            censored += 1
            # Without any alternatives there is nothing to bound it by but the other side's own token.
            other = min(a.logprob, min(b.top.values(), default=b.logprob))
        places.append(place)
        deltas.append(abs(other - a.logprob))
        if not (a.top and b.top):
            continue
        kls.append(kl(a.top, b.top))
        ranked += 1
        agree += bool(_best(a.top) & _best(b.top))
        rank_a = a.rank or _rank(a, a.token, a.logprob)
        rank_b = b.rank or _rank(b, a.token, other)
        if rank_a is not None and rank_b is not None and rank_a != rank_b:
            changes.append(abs(rank_b - rank_a))
    return Section(tuple(places), tuple(deltas), tuple(kls), censored, agree, ranked, tuple(changes))


def compare_records(a: PromptRecord, b: PromptRecord, label_a: str, label_b: str) -> Pair:
    """Compares two answers to the same prompt.

    Generated positions count up to and including the first divergence: after it the texts are two different ones.
    Teacher-forced positions all count, since both sides read the same prompt.
    """
    parted = divergence(a.generated, b.generated)
    shared = min(len(a.generated.tokens), len(b.generated.tokens))
    end = shared if parted is None else min(parted.position + 1, shared)
    generated = _section(
        (a.prompt_tokens + place, x, y)
        for place, (x, y) in enumerate(zip(_spots(a.generated), _spots(b.generated), strict=False))
        if place < end
    )
    forced = _section(
        (place, x, y) for place, (x, y) in enumerate(zip(_forced_spots(a), _forced_spots(b), strict=False), start=1)
    )
    return Pair(label_a, label_b, _bits(a) == _bits(b), parted, generated, forced)


def _bits(record: PromptRecord) -> tuple[object, ...]:
    """All that must be equal for two answers to be identical. The order of alternatives says nothing: ties."""
    generated = record.generated
    return (
        record.text,
        record.finish_reason,
        record.prompt_ids,
        generated.tokens,
        generated.logprobs,
        [dict(top) for top in generated.top],
        None
        if record.forced is None
        else [(token, logprob, rank, dict(top)) for token, logprob, rank, top in record.forced],
    )


def figures(sections: Sequence[Section]) -> Figures:
    """Summarises sections together, each position once a pair."""
    deltas = sorted(delta for section in sections for delta in section.deltas)
    kls = [value for section in sections for value in section.kls]
    ranked = sum(section.ranked for section in sections)
    changes = [change for section in sections for change in section.rank_changes]
    return Figures(
        positions=len(deltas),
        nonzero=sum(1 for delta in deltas if delta > 0),
        censored=sum(section.censored for section in sections),
        mean=math.fsum(deltas) / len(deltas) if deltas else None,
        median=quantile(deltas, 0.5) if deltas else None,
        p99=quantile(deltas, 0.99) if deltas else None,
        max=deltas[-1] if deltas else None,
        kl_mean=math.fsum(kls) / len(kls) if kls else None,
        kl_max=max(kls, default=None),
        top1_agreement=sum(section.agree for section in sections) / ranked if ranked else None,
        rank_changes=len(changes),
        rank_change_max=max(changes, default=0),
    )
