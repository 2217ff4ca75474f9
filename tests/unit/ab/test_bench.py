import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41ctl.ab.bench import BenchSettings, run_bench
from dsv41ctl.ab.benchcompare import compare_bench
from dsv41ctl.ab.benchrun import BenchCell, BenchRequest, BenchRun, read_bench, write_bench
from dsv41ctl.ab.client import ServeError
from dsv41ctl.config.model import Bench
from dsv41ctl.errors import Inconclusive, UsageError

from .fake import URL, FakeServe

SMALL = BenchSettings(URL, "A", prompt_tokens=(20, 50), max_tokens=6, concurrency=(1, 2), requests=3)


def made(label: str, ttfts: list[float], *, state: Any = "clean", model: str = "tiny", size: int = 64) -> BenchRun:
    requests = [
        BenchRequest(prompt_tokens=size, tokens=5, ttft_s=ttft, decode_s=0.4, total_s=1.0, gaps_s=[0.1] * 4)
        for ttft in ttfts
    ]
    cell = BenchCell(prompt_tokens=size, concurrency=1, wall_s=2.0, retries=0, requests=requests)
    return BenchRun(
        label=label, url=URL, model=model, version=None, started="now", max_tokens=5, arm={}, state=state,
        counters={"fallback": 0.0}, warmups=1, cautions=[], cells=[cell],
    )  # fmt: skip


def test_a_run_measures_every_cell_after_a_warm_up() -> None:
    fake = FakeServe()
    run = run_bench(SMALL, serve=fake.client())
    assert run.state == "clean"
    assert [(cell.prompt_tokens, cell.concurrency) for cell in run.cells] == [(20, 1), (20, 2), (50, 1), (50, 2)]
    assert run.warmups == 1 + 2 + 1 + 2
    for cell in run.cells:
        assert len(cell.requests) == 3
        for request in cell.requests:
            assert request.prompt_tokens == cell.prompt_tokens
            assert request.tokens == 6
            assert len(request.gaps_s) == 5
            assert 0 < request.ttft_s <= request.total_s
    sent = [body for body in fake.requests if body["max_tokens"] == 6]
    assert len(sent) == 4 * 3 + run.warmups
    # Every prompt and salt is new, so the prefix cache has nothing.
    assert len({body["prompt"] for body in sent}) == len(sent)
    assert len({body["cache_salt"] for body in sent}) == len(sent)
    assert all(body["ignore_eos"] is True for body in sent)


def test_fallbacks_that_move_make_it_mixed() -> None:
    run = run_bench(SMALL, serve=FakeServe(fallbacks=2).client())
    assert run.state == "mixed"
    assert run.counters is not None
    assert run.counters["fallback"] > 0


def test_without_counters_it_is_unproven() -> None:
    for fake in (FakeServe(source=None), FakeServe(missing={"/metrics"})):
        run = run_bench(SMALL, serve=fake.client())
        assert run.state == "unproven"
        assert any("fallbacks unknown" in caution for caution in run.cautions)


@pytest.mark.parametrize(
    ("readings", "state"),
    [
        ([{"x": 3.0}, {"x": 3.0}], "clean"),
        ([{"x": 3.0}, {"x": 4.0}], "mixed"),
        ([{"x": 3.0}, {"x": 0.0}], "unproven"),
        ([{"x": 3.0}, None], "unproven"),
        ([None, {"x": 0.0}], "unproven"),
    ],
)
def test_the_callers_counters_decide(readings: list[dict[str, float] | None], state: str) -> None:
    left = iter(readings)
    assert run_bench(SMALL, counters=lambda: next(left), serve=FakeServe(source=None).client()).state == state


def test_what_a_serve_refuses_is_left_out_and_said() -> None:
    fake = FakeServe(refuse={"ignore_eos", "stream_options"})
    run = run_bench(SMALL, serve=fake.client())
    assert len([caution for caution in run.cautions if "refused" in caution]) == 2
    assert all("ignore_eos" not in body for body in fake.requests if body["max_tokens"] == 6)
    assert all(request.tokens == 6 for cell in run.cells for request in cell.requests)


def test_prefix_cache_hits_are_said() -> None:
    run = run_bench(SMALL, serve=FakeServe(hits_per_request=8).client())
    assert any("prefix cache hits moved" in caution for caution in run.cautions)


def test_a_failed_request_is_tried_again_and_said() -> None:
    run = run_bench(replace(SMALL, concurrency=(1,)), serve=FakeServe(fail=[503, 503]).client())
    # The first two failures fall on the warm-up, whose retries do not count.
    assert run.cells[0].retries == 0
    with pytest.raises(ServeError, match=r"stream cut off before \[DONE\]"):
        run_bench(SMALL, serve=FakeServe(cut_stream=True).client())


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"prompt_tokens": ()}, "2 tokens or more"),
        ({"concurrency": (0,)}, "1 or more"),
        ({"requests": 0}, "1 or more"),
        ({"max_tokens": 1}, "2 generated tokens"),
        ({"prompt_tokens": (4095,)}, "more than the serve's 4096"),
    ],
)
def test_settings_that_do_not_fit(over: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run_bench(replace(SMALL, **over), serve=FakeServe().client())


def test_settings_from_the_cluster_file() -> None:
    found = BenchSettings.from_config(Bench(prompt_tokens=[9], requests=2), url=URL, label="A", requests=3)
    assert (found.prompt_tokens, found.requests) == ((9,), 3)


def test_a_file_round_trip(tmp_path: Path) -> None:
    run = made("A", [1.0, 2.0, 3.0])
    write_bench(run, tmp_path / "a.json")
    assert read_bench(tmp_path / "a.json") == run
    assert run.as_json()["medians"] == [
        {
            "prompt_tokens": 64, "concurrency": 1, "total_tok_s": 7.5, "gap_p99_s": 0.1,
            "ttft_s": 2.0, "itl_s": 0.1, "prefill_tok_s": 32.0, "decode_tok_s": 10.0,
        }
    ]  # fmt: skip


def test_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(UsageError, match="No such file"):
        read_bench(path)
    path.write_text("{")
    with pytest.raises(Inconclusive, match=r"makes it again"):
        read_bench(path)
    document = json.loads(made("A", [1.0]).model_dump_json(by_alias=True))
    path.write_text(json.dumps({**document, "schema": 7}))
    with pytest.raises(Inconclusive, match="schema 7"):
        read_bench(path)


def test_medians_ratio_and_interval() -> None:
    found = compare_bench(made("A", [1.0, 1.1, 1.2, 1.3, 1.4]), made("B", [2.0, 2.2, 2.4, 2.6, 2.8]))
    assert found.verdict == "measured"
    row = next(row for row in found.rows if row.figure == "ttft_s")
    assert (row.a, row.b) == (1.2, 2.4)
    assert row.ratio == pytest.approx(2.0)
    assert row.interval is not None
    assert row.interval[0] < 2.0 < row.interval[1]
    assert len(row.cells()) == 5


@given(st.lists(st.floats(0.01, 10), min_size=3, max_size=9), st.lists(st.floats(0.01, 10), min_size=3, max_size=9))
@settings(max_examples=20, deadline=None)
def test_the_interval_is_reproducible_and_within_the_extremes(a: list[float], b: list[float]) -> None:
    first = compare_bench(made("A", a), made("B", b), resamples=200)
    assert first == compare_bench(made("A", a), made("B", b), resamples=200)
    row = first.rows[0]
    assert row.interval is not None
    assert min(b) / max(a) <= row.interval[0] <= row.interval[1] <= max(b) / min(a)


def test_too_few_requests_have_no_interval() -> None:
    assert compare_bench(made("A", [1.0, 2.0]), made("B", [1.0, 2.0])).rows[0].interval is None


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (made("B", [1.0], state="mixed"), "B is mixed"),
        (made("B", [1.0], state="unproven"), "B is unproven"),
        (made("B", [1.0], model="other"), "different models"),
        (made("B", [1.0], size=65), "measured on one side only: 64 tokens, 1 at once; 65 tokens, 1 at once"),
    ],
)
def test_what_cannot_be_compared_is_inconclusive(other: BenchRun, words: str) -> None:
    found = compare_bench(made("A", [1.0]), other)
    assert found.verdict == "inconclusive"
    assert words in "; ".join(found.reasons)
