from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41ctl.ab.comparing import compare_captures
from dsv41ctl.ab.comparison import comparison_json
from dsv41ctl.ab.records import Flags
from dsv41ctl.ab.verdict import Verdict, rule_text, worst
from dsv41ctl.errors import Exit, UsageError

from .make import capture, noisy, record, still

WIDE = {"size": 600, "steps": 80}


def run(label: str, seed: int | None = None, width: float = 0.01, **more: Any) -> Any:
    delta = still if seed is None else noisy(seed, width)
    return capture(label, record(delta=delta, **{**WIDE, **more}))


def test_identical() -> None:
    found = compare_captures([run("A1")], [run("B1")])
    assert found.verdict is Verdict.IDENTICAL
    assert found.verdict.exit is Exit.DONE
    assert found.reasons == ["prompt 600: all bits equal"]


def test_one_perturbed_logprob_without_a_floor_is_inconclusive_and_says_what_to_do() -> None:
    found = compare_captures([run("A1")], [run("B1", forced_delta=lambda place: 0.25 * (place == 300))])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.prompts[0].forced.nonzero == 1
    assert found.prompts[0].forced.max == pytest.approx(0.25)
    assert "no A-A floor" in found.reasons[0]
    assert "--floor A1 A2" in found.reasons[-1]


def test_one_perturbed_logprob_against_a_zero_floor_is_different() -> None:
    b = run("B1", forced_delta=lambda place: 1e-12 * (place == 300))
    found = compare_captures([run("A1"), run("A2")], [b])
    assert found.verdict is Verdict.DIFFERENT
    assert found.verdict.exit is Exit.CHECK_SAYS_NO
    assert "A against A is identical" in found.reasons[0]


def test_a_divergence_against_a_zero_floor_is_different() -> None:
    found = compare_captures([run("A1"), run("A2")], [run("B1", flip=5)])
    assert found.verdict is Verdict.DIFFERENT
    assert "tokens diverge at generated position 5" in found.reasons[0]


def test_equal_noise_is_within_the_floor() -> None:
    found = compare_captures([run("A1", 1), run("A2", 2)], [run("B1", 3)])
    assert found.verdict is Verdict.WITHIN_FLOOR
    assert found.verdict.exit is Exit.DONE
    assert found.prompts[0].floor_forced is not None


def test_more_noise_is_different() -> None:
    found = compare_captures([run("A1", 1), run("A2", 2)], [run("B1", 3, width=0.05)])
    assert found.verdict is Verdict.DIFFERENT
    assert "teacher-forced: mean |Δ| is" in found.reasons[0]


def test_a_shifted_tail_is_different_though_the_mean_is_not() -> None:
    noise = noisy(3, 0.01)
    tail = run("B1", size=3000, forced_delta=lambda place: noise(place) * (6 if place % 18 == 0 else 1))
    found = compare_captures([run("A1", 1, size=3000), run("A2", 2, size=3000)], [tail])
    assert found.verdict is Verdict.DIFFERENT
    assert "exceed 1.5 x the floor's p99" in found.reasons[0]


def test_one_far_outlier_is_never_a_pass() -> None:
    noise = noisy(3, 0.01)
    one = run("B1", forced_delta=lambda place: 2.0 if place == 77 else noise(place))
    found = compare_captures([run("A1", 1), run("A2", 2)], [one])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "at position 77" in found.reasons[0]


def test_a_divergence_at_a_wide_margin_is_never_a_pass() -> None:
    found = compare_captures([run("A1", 1), run("A2", 2)], [run("B1", 3, flip=70)])
    assert found.verdict is not Verdict.WITHIN_FLOOR
    assert found.verdict is not Verdict.IDENTICAL


def test_an_answer_that_ends_early_is_no_pass_when_a_never_does() -> None:
    found = compare_captures([run("A1", 1), run("A2", 2)], [run("B1", 3, end=70)])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "where one ends" in found.reasons[0]


def test_an_excess_over_few_positions_is_inconclusive() -> None:
    def few(label: str, seed: int, width: float) -> Any:
        return capture(label, record(delta=noisy(seed, width), size=2, steps=2))

    found = compare_captures([few("A1", 1, 0.01), few("A2", 2, 0.01)], [few("B1", 4, 0.04)])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "too few to tell from luck" in "".join(found.reasons)


def test_the_factor_is_obeyed() -> None:
    runs = [run("A1", 1), run("A2", 2)]
    assert compare_captures(runs, [run("B1", 3, width=0.03)], floor_factor=4).verdict is Verdict.WITHIN_FLOOR
    assert compare_captures(runs, [run("B1", 3, width=0.03)], floor_factor=1.2).verdict is Verdict.DIFFERENT
    assert "1.2 x" in rule_text(1.2)


def test_an_explicit_floor_is_as_good_as_more_a_runs() -> None:
    a1, a2, b1 = run("A1", 1), run("A2", 2), run("B1", 3)
    found = compare_captures([a1], [b1], [a1, a2])
    assert found.verdict is Verdict.WITHIN_FLOOR
    assert [(pair.a, pair.b) for pair in found.prompts[0].aa] == [("A1", "A2")]


def test_bits_that_equal_one_of_two_differing_a_runs_are_judged_by_the_floor() -> None:
    found = compare_captures([run("A1", 1), run("A2", 2)], [run("B1", 1)])
    assert found.verdict is Verdict.WITHIN_FLOOR


@pytest.mark.parametrize("seed", range(20))
def test_equal_noise_is_not_called_different_by_chance(seed: int) -> None:
    runs = [run(label, 1000 * seed + place) for place, label in enumerate(("A1", "A2", "B1"))]
    assert compare_captures(runs[:2], runs[2:]).verdict is not Verdict.DIFFERENT


def test_a_mark_makes_its_prompt_inconclusive_even_if_identical() -> None:
    found = compare_captures([run("A1")], [run("B1", marks=["prefix cache hits moved by 16"])])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reasons == ["prompt 600: B1 is marked: prefix cache hits moved by 16", found.reasons[-1]]


def test_a_marked_floor_is_no_floor() -> None:
    found = compare_captures([run("A1", 1), run("A2", 2, marks=["busy server"])], [run("B1", 3)])
    assert found.verdict is Verdict.INCONCLUSIVE


def test_missing_teacher_forcing_on_one_side_is_inconclusive() -> None:
    b = capture("B1", record(**WIDE).model_copy(update={"forced": None}))
    found = compare_captures([run("A1")], [b])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "B1 has 0 teacher-forced positions, A1 599" in found.reasons[0]


def test_no_logprobs_at_all_is_inconclusive() -> None:
    empty = record().generated.model_copy(update={"tokens": [], "logprobs": [], "top": []})
    a, b = (capture(label, record().model_copy(update={"generated": empty})) for label in ("A1", "B1"))
    assert compare_captures([a], [b]).verdict is Verdict.INCONCLUSIVE
    assert compare_captures([capture("A1")], [capture("B1")]).verdict is Verdict.INCONCLUSIVE


FLAGS = Flags(api="completions", max_tokens=9, logprobs=3, prompt_logprobs=1, token_keys="ids", cache_salt=True)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (capture("B1", record(), model="other"), "different models, tiny and other"),
        (capture("B1", record(), flags=FLAGS), "different flags, max_tokens 8 and 9"),
        (capture("B1", record(text="another")), "different prompts (next: capture both sides with the same options"),
        (capture("B1", record(), record(1)), "different prompts"),
        (capture("B1", record().model_copy(update={"prompt_ids": [7] * 40})), "prompt 40 has different tokens"),
    ],
)
def test_what_cannot_be_compared_is_inconclusive_and_names_both_files(other: Any, words: str) -> None:
    found = compare_captures([capture("A1", record())], [other])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert words in found.reasons[0]
    assert found.reasons[0].startswith("A1.jsonl and B1.jsonl: ")
    assert found.prompts == []


def test_one_run_twice_is_refused() -> None:
    a = run("A1")
    with pytest.raises(UsageError, match="compared with itself"):
        compare_captures([a], [a])
    # A copy under another name is still the same run.
    with pytest.raises(UsageError, match="compared with itself"):
        compare_captures([a, capture("A2", record(**WIDE), run_id="A1")], [run("B1")])
    with pytest.raises(UsageError, match="its own floor"):
        compare_captures([a], [run("B1")], [a, a])
    b = run("B1")
    with pytest.raises(UsageError, match="cannot be part of A's floor"):
        compare_captures([a], [b], [a, b])
    with pytest.raises(UsageError, match="both sides"):
        compare_captures([a], [])
    with pytest.raises(UsageError, match="below 1"):
        compare_captures([a], [b], floor_factor=0.5)


def test_what_a_reader_should_know_is_said() -> None:
    found = compare_captures([run("A1")], [capture("B1", record(**WIDE), version="0.2", degradations=["priority: x"])])
    assert found.verdict is Verdict.IDENTICAL
    assert found.cautions == [
        "different serve versions: 0.1, 0.2",
        "degraded: priority: x",
        "A and B took their rows from the same source (disk): is B really B?",
    ]


def test_several_prompts_the_worst_one_decides() -> None:
    def two(label: str, **second: Any) -> Any:
        return capture(label, record(0), record(1, **second))

    found = compare_captures([two("A1"), two("A2")], [two("B1", flip=2)])
    assert [prompt.verdict for prompt in found.prompts] == [Verdict.IDENTICAL, Verdict.DIFFERENT]
    assert found.verdict is Verdict.DIFFERENT


@given(st.lists(st.sampled_from(list(Verdict)), max_size=6))
def test_the_worst_verdict_wins_in_any_order(verdicts: list[Verdict]) -> None:
    assert worst(verdicts) is worst(verdicts[::-1])
    assert (worst(verdicts) is Verdict.IDENTICAL) == (bool(verdicts) and set(verdicts) == {Verdict.IDENTICAL})
    assert Verdict.DIFFERENT not in verdicts or worst(verdicts) is Verdict.DIFFERENT


@given(st.integers(0, 500), st.integers(0, 500))
@settings(max_examples=25, deadline=None)
def test_identity_does_not_depend_on_the_side(seed: int, other: int) -> None:
    def one(label: str, number: int) -> Any:
        return capture(label, record(delta=noisy(number, 0.1)))

    there = compare_captures([one("A1", seed)], [one("B1", other)])
    back = compare_captures([one("A1", other)], [one("B1", seed)])
    assert there.verdict is back.verdict
    assert (there.verdict is Verdict.IDENTICAL) == (seed == other)


def test_positions_are_reported_in_ranges() -> None:
    found = compare_captures([run("A1", 1, size=2000)], [run("B1", 2, size=2000)])
    prompt = found.prompts[0]
    assert [(row.start, row.end) for row in prompt.ranges] == [(0, 1024), (1024, 8192)]
    assert len(prompt.series) <= 161
    assert prompt.series[0].start == 1
    assert prompt.series[-1].end == 2080
    worst_seen = max(row.ab_max or 0 for row in prompt.series)
    assert worst_seen == max(prompt.forced.max or 0, prompt.generated.max or 0)


def test_the_documents_shape(snapshot: Any) -> None:
    a = [capture(f"A{n}", record(size=6, steps=3, delta=lambda place, n=n: n * 2**-10 * place)) for n in (1, 2)]
    b = [capture("B1", record(size=6, steps=3, flip=2, delta=lambda place: 2**-8 * place))]
    document = comparison_json(compare_captures(a, b))
    assert _rounded(document) == snapshot


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return round(value, 9) if isinstance(value, float) else value
