import math

from hypothesis import given
from hypothesis import strategies as st

from dsv41ctl.ab.distance import Section, compare_records, divergence, figures, kl, margin, quantile

from .make import generated, nearly, noisy, record, still


@st.composite
def lists(draw: st.DrawFn) -> dict[int | str, float]:
    """A top-k list as a serve gives it: some of a distribution's largest entries."""
    weights = draw(st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=12))
    keys = draw(st.permutations(range(len(weights))))
    total = math.fsum(weights)
    whole = {key: math.log(weight / total) for key, weight in zip(keys, weights, strict=True)}
    listed = sorted(whole, key=lambda key: -whole[key])[: draw(st.integers(1, len(whole)))]
    return {key: whole[key] for key in listed}


@given(lists(), lists())
def test_kl_is_never_negative(p: dict[int | str, float], q: dict[int | str, float]) -> None:
    assert kl(p, q) >= -1e-9
    assert math.isfinite(kl(p, q))


@given(lists())
def test_kl_of_a_distribution_to_itself_is_zero(p: dict[int | str, float]) -> None:
    assert nearly(kl(p, p), 0.0)


def test_kl_is_the_textbooks_where_all_is_listed() -> None:
    p = {1: math.log(0.75), 2: math.log(0.25)}
    q = {1: math.log(0.5), 2: math.log(0.5)}
    assert math.isclose(kl(p, q), 0.75 * math.log(1.5) + 0.25 * math.log(0.5), rel_tol=1e-6)


def test_kl_counts_the_unlisted_rest_as_one_bucket() -> None:
    p, q = {1: math.log(0.75)}, {1: math.log(0.5)}
    assert math.isclose(kl(p, q), 0.75 * math.log(1.5) + 0.25 * math.log(0.5), rel_tol=1e-6)


def test_kl_gives_a_missing_token_no_more_than_the_other_side_allows() -> None:
    p, q = {1: math.log(0.5), 2: math.log(0.4)}, {1: math.log(0.5), 3: math.log(0.3)}
    # Token 2 has at most q's rest of 0.2, shared with everything else that is not listed.
    assert kl(p, q) > 0.4 * math.log(0.4 / 0.2)
    # Keys of both kinds may meet when a serve names only some by id.
    assert math.isfinite(kl({1: -0.1}, {"a": -0.1}))


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50))
def test_quantiles_lie_among_the_values(values: list[float]) -> None:
    ordered = sorted(values)
    assert quantile(ordered, 0) == ordered[0]
    assert quantile(ordered, 1) == ordered[-1]
    assert ordered[0] <= quantile(ordered, 0.99) <= ordered[-1]


def test_margin() -> None:
    assert margin({1: -0.5, 2: -2.0, 3: -1.0}) == 0.5
    assert margin({1: -0.5}) is None


def test_generated_positions_count_up_to_and_including_the_divergence() -> None:
    pair = compare_records(record(), record(flip=3), "A", "B")
    assert pair.divergence is not None
    assert (pair.divergence.position, pair.divergence.token_a, pair.divergence.token_b) == (3, "#3", "#103")
    assert pair.divergence.margin_a is not None
    assert nearly(pair.divergence.margin_a, 1.2)
    assert pair.generated.places == (40, 41, 42, 43)
    assert [round(delta, 9) for delta in pair.generated.deltas] == [0, 0, 0, 1.2]
    assert pair.generated.rank_changes == (1,)
    assert (pair.generated.agree, pair.generated.ranked) == (3, 4)
    # Teacher forcing is not cut by it.
    assert len(pair.forced.places) == 39


def test_a_token_that_the_other_side_does_not_list_is_bounded_and_counted() -> None:
    a, b = record(), record(flip=0)
    other = b.generated.model_copy(update={"top": [top[1:] for top in b.generated.top]})
    pair = compare_records(a, b.model_copy(update={"generated": other}), "A", "B")
    assert pair.generated.censored == 1
    assert nearly(pair.generated.deltas[0], -0.4 + 3.0)


def test_an_answer_that_ends_early_diverges_there() -> None:
    found = divergence(generated(8, still), generated(8, still, end=5))
    assert found is not None
    assert (found.position, found.token_a, found.token_b) == (5, "#5", None)


@given(st.integers(0, 1000), st.integers(0, 1000), st.booleans())
def test_identity_is_symmetric_and_distance_to_oneself_is_zero(seed: int, other: int, same: bool) -> None:
    a = record(delta=noisy(seed, 0.1))
    b = record(delta=noisy(seed if same else other, 0.1))
    there, back = compare_records(a, b, "A", "B"), compare_records(b, a, "B", "A")
    assert there.identical == back.identical == (a.generated == b.generated and a.forced == b.forced)
    assert compare_records(a, a, "A", "A").identical
    assert not any(compare_records(a, a, "A", "A").forced.deltas)
    if there.identical:
        assert figures([there.generated]) == figures([back.generated])


def test_the_order_of_tied_alternatives_is_no_difference() -> None:
    a = record()
    turned = a.generated.model_copy(update={"top": [top[::-1] for top in a.generated.top]})
    assert compare_records(a, a.model_copy(update={"generated": turned}), "A", "B").identical


def test_one_bit_is_a_difference() -> None:
    a = record()
    forced = list(a.forced or ())
    token, value, rank, top = forced[17]
    forced[17] = (token, math.nextafter(value, 0), rank, top)
    pair = compare_records(a, a.model_copy(update={"forced": forced}), "A", "B")
    assert not pair.identical
    assert figures([pair.forced]).nonzero == 1


def test_figures_of_nothing_are_none() -> None:
    empty = figures([Section()])
    assert (empty.positions, empty.mean, empty.p99, empty.kl_mean, empty.top1_agreement) == (0, None, None, None, None)
