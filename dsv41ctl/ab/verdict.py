"""From distances to a verdict, by a rule that is printed with it. Pure."""

import math
from collections.abc import Sequence
from enum import Enum

from dsv41ctl.ab.distance import Pair, Section, figures, quantile
from dsv41ctl.errors import Exit

__all__ = ["Verdict", "judge_prompt", "rule_text", "worst"]

# A lone position this many times beyond all of the floor's is no noise that the floor has shown.
OUTLIER_FACTOR = 4.0
# How many standard errors, and how small a chance, make an excess more than luck among the positions.
_ERRORS = 3.0
_CHANCE = 0.001
# With fewer positions a 99th percentile is hardly more than the largest value.
_LEAST_FOR_P99 = 200


class Verdict(Enum):
    """Of one prompt, or of a comparison."""

    IDENTICAL = "IDENTICAL"
    WITHIN_FLOOR = "WITHIN FLOOR"
    DIFFERENT = "DIFFERENT"
    INCONCLUSIVE = "INCONCLUSIVE"

    @property
    def exit(self) -> Exit:
        """The exit code that says the same."""
        return _EXITS[self]


_EXITS = {
    Verdict.IDENTICAL: Exit.DONE,
    Verdict.WITHIN_FLOOR: Exit.DONE,
    Verdict.DIFFERENT: Exit.CHECK_SAYS_NO,
    Verdict.INCONCLUSIVE: Exit.INCONCLUSIVE,
}
_ORDER = (Verdict.DIFFERENT, Verdict.INCONCLUSIVE, Verdict.WITHIN_FLOOR)


def rule_text(factor: float) -> str:
    """The rule, for people."""
    return (
        "IDENTICAL: every token, logprob and alternative of A and B is equal to the last bit. "
        "DIFFERENT: A against A is identical, as a whole or within one section, but A against B is not; or the mean "
        f"of |Δ logprob| of A-B is above {factor:g} x that of A-A by more than {_ERRORS:g} standard errors; or more "
        f"positions than 1 % exceed {factor:g} x A-A's p99, beyond a chance of {_CHANCE:g} "
        f"({_LEAST_FOR_P99} positions needed). "
        "WITHIN FLOOR: in both sections, generated (up to and including the first divergence) and teacher-forced, "
        f"mean and p99 of |Δ| of A-B are at most {factor:g} x A-A's, no position exceeds {OUTLIER_FACTOR:g} x A-A's "
        f"largest, and tokens part at a margin of at most 2 x {factor:g} x A-A's largest. "
        "INCONCLUSIVE: anything else: no floor, marked or incomplete captures, different prompts, flags or models, or "
        "an excess that the number of positions cannot tell from luck."
    )


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """DIFFERENT over INCONCLUSIVE over WITHIN FLOOR over IDENTICAL; nothing at all is inconclusive."""
    for verdict in _ORDER:
        if verdict in verdicts:
            return verdict
    return Verdict.IDENTICAL if verdicts else Verdict.INCONCLUSIVE


def judge_prompt(ab: Sequence[Pair], aa: Sequence[Pair], factor: float) -> tuple[Verdict, str]:
    """The verdict on one prompt, and why.

    Args:
        ab: each A run against each B run.
        aa: the floor: A runs against each other.
        factor: how far A-B may exceed the floor.
    """
    if not ab:
        return Verdict.INCONCLUSIVE, "nothing was compared"
    if any(not pair.generated.places for pair in ab):
        return Verdict.INCONCLUSIVE, "no logprobs to compare"
    if all(pair.identical for pair in ab):
        return Verdict.IDENTICAL, "all bits equal"
    what = _first_difference(ab)
    if not aa:
        return Verdict.INCONCLUSIVE, f"{what}; no A-A floor to judge it by"
    if all(pair.identical for pair in aa):
        return Verdict.DIFFERENT, f"{what}; A against A is identical"
    found: list[tuple[Verdict, str]] = []
    for name, read in (("generated", _generated), ("teacher-forced", _forced)):
        mine, floor = [read(pair) for pair in ab], [read(pair) for pair in aa]
        if any(section.places for section in (*mine, *floor)):
            found.append(_judge_section(name, mine, floor, factor))
    found.append(_judge_divergence(ab, aa, factor))
    overall = worst([verdict for verdict, _ in found])
    return overall, "; ".join(reason for verdict, reason in found if verdict is overall)


def _generated(pair: Pair) -> Section:
    return pair.generated


def _forced(pair: Pair) -> Section:
    return pair.forced


def _first_difference(ab: Sequence[Pair]) -> str:
    parted = [pair.divergence.position for pair in ab if pair.divergence]
    if parted:
        return f"tokens diverge at generated position {min(parted)}"
    return "tokens are equal, logprobs are not"


def _judge_section(name: str, mine: Sequence[Section], floor: Sequence[Section], factor: float) -> tuple[Verdict, str]:
    a, b = figures(floor), figures(mine)
    if not a.positions or not b.positions:
        return Verdict.INCONCLUSIVE, f"{name}: positions on one side only"
    if not b.max:
        return Verdict.WITHIN_FLOOR, f"{name}: |Δ| is zero"
    if not a.max:
        return Verdict.DIFFERENT, f"{name}: A against A is zero, A against B is up to {b.max:.3g}"
    for check in (_check_mean, _check_p99, _check_largest):
        verdict, text = check(mine, floor, factor)
        if verdict is not Verdict.WITHIN_FLOOR:
            break
    else:
        text = f"mean |Δ| is {_ratio(b.mean, a.mean):.3g} x the floor's"
    return verdict, f"{name}: {text}"


def _ratio(above: float | None, below: float | None) -> float:
    return (above or 0.0) / below if below else math.inf


def _deltas(sections: Sequence[Section]) -> list[float]:
    return [delta for section in sections for delta in section.deltas]


def _check_mean(mine: Sequence[Section], floor: Sequence[Section], factor: float) -> tuple[Verdict, str]:
    ab, aa = _deltas(mine), _deltas(floor)
    ratio = _ratio(_mean(ab), _mean(aa))
    text = f"mean |Δ| is {ratio:.3g} x the floor's"
    if ratio <= factor:
        return Verdict.WITHIN_FLOOR, text
    if _mean_is_above(mine, floor, factor):
        return Verdict.DIFFERENT, text
    return Verdict.INCONCLUSIVE, f"{text}, {_too_few(ab, aa)}"


def _check_p99(mine: Sequence[Section], floor: Sequence[Section], factor: float) -> tuple[Verdict, str]:
    ab, aa = _deltas(mine), _deltas(floor)
    limit = factor * quantile(sorted(aa), 0.99)
    if quantile(sorted(ab), 0.99) <= limit:
        return Verdict.WITHIN_FLOOR, ""
    over = sum(1 for delta in ab if delta > limit)
    text = f"{over} of {len(ab)} positions exceed {factor:g} x the floor's p99"
    # Pairs share runs, so many pairs are no more positions than one pair has.
    each, floor_each = len(ab) // len(mine), len(aa) // len(floor)
    if min(each, floor_each) >= _LEAST_FOR_P99 and _tail(over // len(mine), 0.01 * each) < _CHANCE:
        return Verdict.DIFFERENT, text
    return Verdict.INCONCLUSIVE, f"{text}, {_too_few(ab, aa)}"


def _check_largest(mine: Sequence[Section], floor: Sequence[Section], factor: float) -> tuple[Verdict, str]:
    del factor  # an outlier has a factor of its own
    most = max(_deltas(floor))
    spots = [spot for section in mine for spot in zip(section.deltas, section.places, strict=True)]
    delta, place = max(spots)
    if delta <= OUTLIER_FACTOR * most:
        return Verdict.WITHIN_FLOOR, ""
    return Verdict.INCONCLUSIVE, f"|Δ| {delta:.3g} at position {place} is {delta / most:.3g} x the floor's largest"


def _judge_divergence(ab: Sequence[Pair], aa: Sequence[Pair], factor: float) -> tuple[Verdict, str]:
    """Noise can flip two tokens only as far apart as both of their logprobs may move together."""
    reach = 2 * factor * max(_deltas([s for pair in aa for s in (pair.generated, pair.forced)]), default=0.0)
    for pair in ab:
        parted = pair.divergence
        if parted is None:
            continue
        where = f"{pair.a} and {pair.b} part at generated position {parted.position}"
        if parted.token_a is None or parted.token_b is None:
            if not any(other.divergence for other in aa):
                return Verdict.INCONCLUSIVE, f"{where}, where one ends; A runs do not part"
        elif parted.margin_a is not None and parted.margin_a > reach:
            return Verdict.INCONCLUSIVE, (
                f"{where} at a margin of {parted.margin_a:.3g}; the floor explains {reach:.3g} at most"
            )
    return Verdict.WITHIN_FLOOR, "tokens part within the floor's reach"


def _too_few(ab: Sequence[float], aa: Sequence[float]) -> str:
    return f"but {len(ab)} and {len(aa)} positions are too few to tell from luck; capture more A runs"


def _mean_is_above(mine: Sequence[Section], floor: Sequence[Section], factor: float) -> bool:
    """Whether the mean of A-B exceeds factor x that of A-A by more than the standard errors of both allow."""
    ab, aa = _deltas(mine), _deltas(floor)
    if min(len(ab), len(aa)) < 2:
        return False
    excess = _mean(ab) - factor * _mean(aa)
    # Pairs share runs, so many pairs are no more positions than one pair has.
    square = _square_error(ab) * len(mine) + factor**2 * _square_error(aa) * len(floor)
    return excess > _ERRORS * math.sqrt(square)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _square_error(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)


def _tail(count: int, expected: float) -> float:
    """The chance of `count` or more where `expected` are expected (Poisson)."""
    below = math.fsum(math.exp(k * math.log(expected) - expected - math.lgamma(k + 1)) for k in range(count))
    return max(0.0, 1.0 - below)
