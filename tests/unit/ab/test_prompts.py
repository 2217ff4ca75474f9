from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41ctl.ab.prompts import Builtin, Jsonl, builtin_text, fit_exactly, fit_roughly, read_jsonl
from dsv41ctl.errors import UsageError


def test_the_builtin_text_is_the_same_everywhere() -> None:
    # Captures of different machines compare by this text, so it must never change by accident.
    import hashlib

    digest = hashlib.sha256(builtin_text(41, 4000)[:4000].encode()).hexdigest()
    assert digest == "a4b20a6efca5377f4ce0c60c9048654e90507e3cb2fa10f50d1a5da8af3615cf"


@given(st.integers(0, 1 << 30), st.integers(1, 3000), st.integers(0, 3000))
@settings(max_examples=40, deadline=None)
def test_longer_text_only_appends(seed: int, chars: int, more: int) -> None:
    short = builtin_text(seed, chars)
    assert len(short) >= chars
    assert builtin_text(seed, chars + more).startswith(short)


def test_no_two_prompts_share_a_beginning() -> None:
    texts = [Builtin(41).text(index, 200)[:24] for index in range(50)]
    assert len(set(texts)) == 50


@given(st.integers(2, 5000), st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_fitting_asks_little_and_hits_the_size(size: int, per_token: int) -> None:
    calls = 0

    def count(text: str) -> int:
        nonlocal calls
        calls += 1
        return -(-len(text) // per_token)

    prompt = fit_exactly(Builtin(1), 0, size, count)
    assert -(-len(prompt.text) // per_token) == size
    assert calls < 30


@given(st.integers(2, 400), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_fitting_never_exceeds_an_uneven_tokenizer(size: int, salt: int) -> None:
    def count(text: str) -> int:
        return sum(1 + ((ord(char) + salt) % 3) for char in text)

    prompt = fit_exactly(Builtin(1), 0, size + 3, count)
    assert size <= count(prompt.text) <= size + 3


def test_rough_fitting_scales_one_sample() -> None:
    seen: list[str] = []

    def count(text: str) -> int:
        seen.append(text)
        return len(text) // 4

    prompt = fit_roughly(Builtin(1), 0, 3000, count)
    assert len(seen) == 1
    assert abs(len(prompt.text) / 4 - 3000) < 5


def test_a_source_that_is_too_short_says_so() -> None:
    with pytest.raises(UsageError, match=r"d.jsonl .*: 3 tokens of text, 50 needed"):
        fit_exactly(Jsonl(Path("d.jsonl"), "text", ("abc",)), 0, 50, len)
    with pytest.raises(UsageError, match="50 needed"):
        fit_roughly(Jsonl(Path("d.jsonl"), "text", ("abc",)), 0, 50, len)


def test_jsonl_prompts_begin_at_other_records(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"text": "one"}\n\n{"text": "two"}\n{"text": ""}\n', encoding="utf-8")
    source = read_jsonl(path, "text")
    assert source.records == ("one", "two")
    assert source.text(0, 100) == "one\n\ntwo"
    assert source.text(1, 100) == "two\n\none"
    assert str(tmp_path) not in source.describe()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"text": "a"}\nnot json\n', ":2: not JSON"),
        ('{"text": "a"}\n[1]\n', ":2: not a JSON object"),
        ('{"text": "a"}\n{"txt": "b"}\n', r":2: no field `text` \(has: txt\)"),
        ('{"text": 7}\n', ":1: field `text` is int, not text"),
        ("", ": no record with text in field `text`"),
        ('{"text": ""}\n', ": no record with text"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=rf"^{path}{words}") as caught:
        read_jsonl(path, "text")
    assert "\n" not in str(caught.value)
    assert "(next: " in str(caught.value)


def test_a_file_that_is_no_text_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    with pytest.raises(UsageError, match="No such file"):
        read_jsonl(path, "text")
    path.write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    with pytest.raises(UsageError, match="not UTF-8"):
        read_jsonl(path, "text")
