import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv41ctl.ab.capabilities import State, probe
from dsv41ctl.ab.capturefile import read_capture
from dsv41ctl.ab.capturing import capture
from dsv41ctl.ab.client import ServeError
from dsv41ctl.ab.settings import CaptureSettings, CaptureSummary
from dsv41ctl.config.model import Ab
from dsv41ctl.errors import UsageError

from .fake import URL, FakeServe


def run(fake: FakeServe, out: Path, **over: Any) -> CaptureSummary:
    defaults = CaptureSettings(URL, "A1", out, sizes=(12, 40), max_tokens=8, settle_s=0.0)
    return capture(replace(defaults, **over), serve=fake.client())


def look(fake: FakeServe, **over: Any) -> Any:
    asked = {"model": None, "chat": False, "logprobs": 20, "prompt_logprobs": 1, "priority": 10, **over}
    return probe(fake.client(), **asked)


def test_a_whole_capture(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl.gz"
    summary = run(FakeServe(), out, arm={"configuration": "A"})
    assert summary.clean
    assert (summary.prompts, summary.generated_tokens, summary.prompt_positions) == (2, 16, 11 + 39)
    assert summary.lookups == {"disk": 8.0, "fallback": 0.0}
    assert not list(tmp_path.glob("*.partial")) + list(tmp_path.glob("*.tmp"))
    read = read_capture(out)
    assert read.header.arm == {"configuration": "A"}
    assert read.header.system_fingerprint == "fake-1"
    assert [record.prompt_tokens for record in read.prompts] == [12, 40]
    assert all(len(top) == 20 for record in read.prompts for top in record.generated.top)
    # 2 entries where the prompt's own token is outside the alternatives.
    assert {len(row[3]) for record in read.prompts for row in record.forced or ()} <= {1, 2}
    assert summary.sha256 == read.footer.sha256


def test_each_request_is_as_the_protocol_says(tmp_path: Path) -> None:
    fake = FakeServe()
    run(fake, tmp_path / "a.jsonl")
    sent = [body for body in fake.requests if body["max_tokens"] == 8]
    assert len(sent) == 2
    for body in sent:
        assert body["temperature"] == 0
        assert body["priority"] == 10
        assert body["logprobs"] == 20
        assert body["prompt_logprobs"] == 1
        assert body["return_token_ids"] is True
        assert body["return_tokens_as_token_ids"] is True
    assert len({body["cache_salt"] for body in fake.requests if body.get("cache_salt") not in (None, "", "probe")}) == 2


def test_chat_turns_thinking_off(tmp_path: Path) -> None:
    fake = FakeServe()
    summary = run(fake, tmp_path / "a.jsonl", chat=True)
    assert summary.clean
    assert all(body["chat_template_kwargs"]["thinking"] is False for body in fake.requests)
    assert all(body["logprobs"] is True for body in fake.requests)
    assert read_capture(tmp_path / "a.jsonl").header.flags.api == "chat"


def test_everything_is_seen_on_a_full_serve() -> None:
    found = look(FakeServe())
    assert found.states == {
        "return_token_ids": State.SEEN,
        "return_tokens_as_token_ids": State.SEEN,
        "prompt_logprobs": State.SEEN,
        "cache_salt": State.SEEN,
        "priority": State.ACCEPTED,
    }
    assert found.degradations == ()


PARAMETERS = ("return_token_ids", "return_tokens_as_token_ids", "prompt_logprobs", "cache_salt", "priority")


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_refused_parameter_is_named_recorded_and_not_sent(tmp_path: Path, name: str) -> None:
    fake = FakeServe(refuse={name})
    lines: list[str] = []
    settings = CaptureSettings(URL, "A1", tmp_path / "a.jsonl", sizes=(12,), max_tokens=8, settle_s=0.0)
    summary = capture(settings, lambda progress: lines.append(progress.text), serve=fake.client())
    assert any(line.startswith(f"degraded: {name}: refused") for line in lines)
    assert any(line.startswith(f"{name}: refused") for line in summary.degradations)
    assert read_capture(tmp_path / "a.jsonl").header.degradations == list(summary.degradations)
    assert all(name not in body for body in fake.requests if body["max_tokens"] == 8)


@pytest.mark.parametrize("name", ["return_token_ids", "return_tokens_as_token_ids", "prompt_logprobs"])
def test_a_parameter_without_effect_is_found_out(name: str) -> None:
    found = look(FakeServe(ignore={name}))
    assert found.states[name] is State.IGNORED
    assert any(line.startswith(f"{name}: accepted, but without effect") for line in found.degradations)


def test_an_ignored_salt_cannot_be_told_and_is_said_so() -> None:
    found = look(FakeServe(ignore={"cache_salt"}))
    assert found.states["cache_salt"] is State.ACCEPTED
    assert any("cache_salt: accepted, but its effect cannot be seen" in line for line in found.degradations)


def test_alternatives_keyed_by_text_lose_entries(tmp_path: Path) -> None:
    fake = FakeServe(refuse={"return_tokens_as_token_ids"})
    run(fake, tmp_path / "a.jsonl", top_logprobs=20)
    read = read_capture(tmp_path / "a.jsonl")
    assert read.header.flags.token_keys == "text"
    assert min(len(top) for record in read.prompts for top in record.generated.top) < 20


def test_without_metrics_a_capture_is_marked(tmp_path: Path) -> None:
    summary = run(FakeServe(missing={"/metrics"}), tmp_path / "a.jsonl")
    assert not summary.clean
    assert all("no /metrics" in mark for mark in summary.marks)
    assert any(line.startswith("/metrics: none") for line in summary.degradations)


def test_without_tokenize_sizes_come_from_usage(tmp_path: Path) -> None:
    summary = run(FakeServe(missing={"/tokenize"}), tmp_path / "a.jsonl", sizes=(30,))
    assert any(line.startswith("/tokenize: none") for line in summary.degradations)
    assert read_capture(tmp_path / "a.jsonl").prompts[0].prompt_tokens == 30


@pytest.mark.parametrize(
    ("trap", "words"),
    [
        ({"hits_per_request": 16}, "prefix cache hits moved by 16"),
        ({"running": 2}, "busy server before the request: 2 running"),
        ({"others": 3}, "busy server: 4 requests finished where 1 were ours"),
        ({"preemptions": 1}, "preemptions moved by 1"),
        ({"fallbacks": 5}, "mixed rows: 5 lookups fell back"),
    ],
)
def test_what_cannot_be_trusted_is_marked(tmp_path: Path, trap: dict[str, Any], words: str) -> None:
    summary = run(FakeServe(**trap), tmp_path / "a.jsonl", sizes=(12,))
    assert any(words in mark for mark in summary.marks), summary.marks


def test_failures_of_the_serve_are_retried_and_counted(tmp_path: Path) -> None:
    summary = run(FakeServe(fail=[500, 500]), tmp_path / "a.jsonl")
    assert (summary.requests, summary.retries) == (4, 2)
    assert summary.clean


def test_a_failure_keeps_what_there_is_and_resume_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    fake = FakeServe()
    whole = run(fake, tmp_path / "whole.jsonl", sizes=(12, 40, 20))
    broken = FakeServe()
    handle = broken.handle
    calls = 0

    def failing(request: Any) -> Any:
        nonlocal calls
        if request.url.path == "/v1/completions" and json.loads(request.content)["max_tokens"] == 8:
            calls += 1
            if calls > 1:
                broken.fail = [500] * 3
        return handle(request)

    broken.handle = failing  # type: ignore[method-assign]
    with pytest.raises(ServeError, match="the same `ab run` with --resume"):
        run(broken, out, sizes=(12, 40, 20))
    assert not out.exists()
    partial = tmp_path / "a.jsonl.partial"
    # The interruption also cut the last line.
    partial.write_bytes(partial.read_bytes() + b'{"record":"prompt","ind')
    with pytest.raises(UsageError, match="--resume"):
        run(FakeServe(), out, sizes=(12, 40, 20))
    with pytest.raises(UsageError, match="its label differs"):
        run(FakeServe(), out, sizes=(12, 40, 20), resume=True, label="A9")
    with pytest.raises(UsageError, match="its prompts differs"):
        run(FakeServe(), out, sizes=(12, 40, 21), resume=True)
    summary = run(FakeServe(), out, sizes=(12, 40, 20), resume=True)
    assert summary.prompts == 3
    assert not partial.exists()
    read, other = read_capture(out), read_capture(whole.path)
    assert read.footer.resumed == 1
    assert [r.generated for r in read.prompts] == [r.generated for r in other.prompts]


def test_an_earlier_capture_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    run(FakeServe(), out)
    with pytest.raises(UsageError, match="exists"):
        run(FakeServe(), out)
    assert run(FakeServe(), out, overwrite=True).clean


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"sizes": ()}, "sizes"),
        ({"sizes": (1,)}, "2 tokens or more"),
        ({"sizes": (4095,)}, "4095 prompt tokens and 8 generated are more than the serve's 4096"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"top_logprobs": 0}, "needs logprobs"),
        ({"label": " "}, "label is empty"),
        ({"model": "other"}, "does not serve other; it serves tiny"),
        ({"out": Path("/nowhere/at/all/a.jsonl")}, "no directory"),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, over: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(FakeServe(), over.pop("out", tmp_path / "a.jsonl"), **over)


def test_a_limit_on_logprobs_is_told_with_the_option() -> None:
    fake = FakeServe()
    handle = fake.handle

    def limited(request: Any) -> Any:
        if request.url.path == "/v1/completions" and json.loads(request.content).get("logprobs", 0) > 5:
            return fake._no("Requested sample logprobs of 20, which is greater than max allowed: 5")
        return handle(request)

    fake.handle = limited  # type: ignore[method-assign]
    with pytest.raises(UsageError, match=r"20 logprobs refused: .*max allowed: 5 \(next: --logprobs"):
        look(fake)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda choice: choice["logprobs"]["token_logprobs"].pop(), "8 tokens, 7 logprobs"),
        (lambda choice: choice["logprobs"]["token_logprobs"].__setitem__(2, None), "position 2 is not a number"),
        (lambda choice: choice["token_ids"].pop(), "7 token_ids for 8 tokens"),
        (lambda choice: choice["token_ids"].__setitem__(0, 77), "are not the same"),
        (lambda choice: choice["prompt_logprobs"].pop(), "prompt_logprobs has 11 positions, the prompt 12"),
        (lambda choice: choice["prompt_logprobs"].__setitem__(3, None), "lacks the prompt's own token"),
    ],
)
def test_an_answer_that_contradicts_itself_is_refused(tmp_path: Path, spoil: Any, words: str) -> None:
    fake = FakeServe()
    whole = fake._completion

    def spoiled(body: dict[str, Any]) -> dict[str, Any]:
        answer = whole(body)
        if body["max_tokens"] == 8:
            spoil(answer["choices"][0])
        return answer

    fake._completion = spoiled  # type: ignore[method-assign]
    with pytest.raises(ServeError, match=words):
        run(fake, tmp_path / "a.jsonl", sizes=(12,))


def test_equal_runs_write_equal_answers(tmp_path: Path) -> None:
    for name in ("1.jsonl.gz", "2.jsonl.gz"):
        run(FakeServe(), tmp_path / name)
    first, second = read_capture(tmp_path / "1.jsonl.gz"), read_capture(tmp_path / "2.jsonl.gz")
    assert first.header.run_id != second.header.run_id
    assert [r.generated for r in first.prompts] == [r.generated for r in second.prompts]
    assert gzip.decompress((tmp_path / "1.jsonl.gz").read_bytes()).startswith(b'{"record":"header","schema":1,')


def test_the_cluster_files_defaults_and_what_wins(tmp_path: Path) -> None:
    settings = CaptureSettings.from_config(
        Ab(sizes=[8], data="d.jsonl", priority=3), url=URL, label="A1", out=tmp_path / "x", priority=4
    )
    assert (settings.sizes, settings.data, settings.priority) == ((8,), Path("d.jsonl"), 4)


def test_the_key_is_not_in_the_settings_text() -> None:
    assert "hush" not in repr(CaptureSettings(URL, "A", Path("x"), api_key="hush"))
