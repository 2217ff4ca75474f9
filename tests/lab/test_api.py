"""The HTTP API: shapes and refusals as the serve's users know them."""

import json

import pytest

from tests.lab.conftest import TEXT, Serve, events


def test_small_endpoints(serve: Serve) -> None:
    for path in ("/health", "/ping"):
        assert serve.http.get(path).status_code == 200
    assert serve.http.get("/version").json()["version"]
    card = serve.http.get("/v1/models").json()["data"][0]
    assert (card["id"], card["max_model_len"]) == ("lab", 16384)
    assert serve.http.get("/nothing").json()["error"]["code"] == 404


def test_tokenize(serve: Serve) -> None:
    answer = serve.post("/tokenize", prompt="aé", return_token_strs=True).json()
    assert answer == {
        "count": 4,
        "max_model_len": 16384,
        "tokens": [256, 97, 0xC3, 0xA9],
        "token_strs": ["<|begin|>", "a", "\ufffd", "\ufffd"],
    }
    bare = serve.post("/tokenize", prompt="a", add_special_tokens=False).json()
    assert bare["tokens"] == [97]
    chat = serve.post("/tokenize", messages=[{"role": "user", "content": "a"}]).json()
    assert chat["tokens"] == [256, 259, 97, 261, 260]


def test_completion_shape(serve: Serve) -> None:
    answer = serve.complete("shape", logprobs=3, return_token_ids=True, prompt_logprobs=2, max_tokens=9)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["system_fingerprint"].startswith("lab-")
    assert answer["usage"] == {
        "prompt_tokens": 6,
        "total_tokens": 15,
        "completion_tokens": 9,
        "prompt_tokens_details": None,
    }
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], choice["stop_reason"], choice["index"]) == ("length", None, 0)
    assert choice["prompt_token_ids"] == [256, *b"shape"]
    assert bytes(choice["token_ids"]).decode() == choice["text"]
    logprobs = choice["logprobs"]
    assert set(logprobs) == {"text_offset", "token_logprobs", "tokens", "top_logprobs"}
    assert {len(value) for value in logprobs.values()} == {9}
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["text_offset"] == list(range(9))
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        # Greedy: the token is the likeliest.
        assert value == top[token] == max(top.values()) <= 0
        assert len(top) == 3


def test_prompt_logprobs_shape(serve: Serve) -> None:
    choice = serve.complete("shape", prompt_logprobs=2, max_tokens=1)["choices"][0]
    first, *others = choice["prompt_logprobs"]
    assert first is None
    assert len(others) == 5
    for token, entry in zip(b"shape", others, strict=True):
        own = entry[str(token)]
        assert own["decoded_token"] == chr(token)
        ranks = sorted(part["rank"] for part in entry.values())
        assert ranks == ([1, 2] if own["rank"] <= 2 else [1, 2, own["rank"]])
        ordered = sorted(entry.values(), key=lambda part: part["rank"])
        values = [part["logprob"] for part in ordered]
        assert values == sorted(values, reverse=True)
    only_own = serve.complete("shape", prompt_logprobs=0, max_tokens=1)["choices"][0]["prompt_logprobs"]
    assert [list(entry) for entry in only_own[1:]] == [[str(token)] for token in b"shape"]


def test_tokens_as_ids_loses_no_entry(serve: Serve) -> None:
    answer = serve.complete("ids", logprobs=20, return_tokens_as_token_ids=True, return_token_ids=True)
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert all(len(top) == 20 for top in logprobs["top_logprobs"])
    plain = serve.complete("ids")["choices"][0]
    assert (plain["token_ids"], plain["prompt_token_ids"], plain["logprobs"], plain["prompt_logprobs"]) == (None,) * 4


def test_several_prompts_and_token_prompts(serve: Serve) -> None:
    both = serve.complete(["one", "another"])["choices"]
    assert [choice["index"] for choice in both] == [0, 1]
    assert [choice["text"] for choice in both] == [
        serve.complete(prompt)["choices"][0]["text"] for prompt in ([256, *b"one"], [256, *b"another"])
    ]


def test_echo_gives_the_prompts_logprobs(serve: Serve) -> None:
    choice = serve.complete("echoed", echo=True, max_tokens=0, logprobs=1)["choices"][0]
    assert choice["text"] == "echoed"
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert len(choice["logprobs"]["token_logprobs"]) == 7


def test_chat_shape(serve: Serve) -> None:
    body = {
        "model": "lab",
        "messages": [
            {"role": "system", "content": "short"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        ],
        "temperature": 0,
        "max_tokens": 6,
        "logprobs": True,
        "top_logprobs": 4,
        "prompt_logprobs": 0,
        "return_token_ids": True,
        "chat_template_kwargs": {"thinking": False},
    }
    answer = serve.post("/v1/chat/completions", **body).json()
    assert answer["object"] == "chat.completion"
    assert answer["prompt_token_ids"][:2] == [256, 258]
    assert answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"] == len(answer["prompt_token_ids"])
    choice = answer["choices"][0]
    assert choice["message"]["role"] == "assistant"
    content = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == choice["message"]["content"]
    assert bytes(choice["token_ids"]).decode() == choice["message"]["content"]
    for entry in content:
        assert len(entry["top_logprobs"]) == 4
        assert entry["top_logprobs"][0] == {key: entry[key] for key in ("token", "logprob", "bytes")}


@pytest.mark.parametrize("chat", [False, True])
def test_streaming_gives_the_same(serve: Serve, chat: bool) -> None:
    path = "/v1/chat/completions" if chat else "/v1/completions"
    asked = {"messages": [{"role": "user", "content": "stream"}]} if chat else {"prompt": "stream"}
    asked |= {"temperature": 0, "max_tokens": 10, "return_token_ids": True}
    asked |= {"logprobs": True, "top_logprobs": 3} if chat else {"logprobs": 3}
    whole = serve.post(path, **asked).json()
    answer = serve.post(path, **asked, stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *pieces, last = events(answer.text)
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    choices = [piece["choices"][0] for piece in pieces]
    want = whole["choices"][0]
    assert [token for choice in choices for token in choice.get("token_ids") or []] == want["token_ids"]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    if chat:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"]["content"] for choice in choices) == want["message"]["content"]
        got = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
        assert got == want["logprobs"]["content"]
    else:
        assert "".join(choice["text"] for choice in choices) == want["text"]
        assert choices[0]["prompt_token_ids"] == want["prompt_token_ids"]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [part for choice in choices if choice["logprobs"] for part in choice["logprobs"][key]] == (
                want["logprobs"][key]
            )


def test_stop_strings_cut_the_text(serve: Serve) -> None:
    full = serve.complete(TEXT[:60], max_tokens=24)["choices"][0]["text"]
    word = full[8:11]
    stopped = serve.complete(TEXT[:60], max_tokens=24, stop=[word, "\x01never"])["choices"][0]
    assert stopped["text"] == full[: full.index(word)]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", word)
    pieces = events(
        serve.post("/v1/completions", prompt=TEXT[:60], temperature=0, max_tokens=24, stop=[word], stream=True).text
    )
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == stopped["text"]
    token = serve.complete(TEXT[:60], max_tokens=24, stop_token_ids=[ord(full[5])])["choices"][0]
    assert token["stop_reason"] == ord(full[5])
    assert token["text"] == full[: full.index(full[5])]


def test_a_seed_repeats_a_draw(serve: Serve) -> None:
    def draw(seed: int) -> str:
        return serve.complete("draw", temperature=1.0, top_p=0.95, seed=seed, max_tokens=24)["choices"][0]["text"]

    assert draw(5) == draw(5)
    assert len({draw(seed) for seed in range(4)}) > 1


def test_utf8_comes_whole(serve: Serve) -> None:
    # Hot enough to draw lone bytes: text and pieces of a stream must still agree.
    asked = {"prompt": "bytes", "temperature": 50.0, "seed": 1, "max_tokens": 40, "ignore_eos": True}
    whole = serve.post("/v1/completions", **asked).json()["choices"][0]["text"]
    pieces = events(serve.post("/v1/completions", **asked, stream=True).text)
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == whole
    assert "\ufffd" in whole


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"cache_salt": ""}, 400, "non-empty string"),
        ({"logprobs": 21}, 400, "Requested logprobs of 21, which is greater than max allowed: 20"),
        ({"prompt_logprobs": 21}, 400, "prompt logprobs of 21, which is greater than max allowed: 20"),
        ({"logprobs": -1}, 400, "`logprobs` must be a positive value"),
        ({"prompt_logprobs": 1, "stream": True}, 400, "not available when `stream=True`"),
        ({"model": "other"}, 404, "The model `other` does not exist."),
        ({"prompt": "x" * 16384}, 400, "maximum context length is 16384 tokens"),
        ({"prompt": "x" * 16384}, 400, "contains 16385 input tokens"),
        ({"prompt": [256, 272]}, 400, "Token id 272 is out of vocabulary"),
        ({"prompt": []}, 400, "must provide a prompt"),
        ({"prompt": None}, 400, "must provide a prompt"),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1, got 0"),
        ({"max_tokens": "7"}, 400, "max_tokens: Input should be a valid integer"),
        ({"temperature": -1}, 400, "temperature must be in"),
        ({"top_p": 0}, 400, "top_p must be in"),
        ({"priority": "high"}, 400, "priority: Input should be a valid integer"),
        ({"stop": [""]}, 400, "stop cannot contain an empty string"),
        ({"n": 2}, 400, "n must be 1"),
    ],
)
def test_refusals(serve: Serve, body: dict[str, object], status: int, words: str) -> None:
    answer = serve.post("/v1/completions", **{"prompt": "x", **body})
    assert answer.status_code == status
    error = answer.json()["error"]
    assert words in error["message"]
    assert (error["code"], error["type"]) == (status, "NotFoundError" if status == 404 else "BadRequestError")
    assert "param" in error


def test_chat_refusals(serve: Serve) -> None:
    for body, words in (
        ({"top_logprobs": 3}, "`logprobs` must be set to true"),
        ({"messages": []}, "non-empty list"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "unknown role 'nobody'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text parts"),
    ):
        answer = serve.post("/v1/chat/completions", **{"messages": [{"role": "user", "content": "x"}], **body})
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]
    broken = serve.http.post("/v1/completions", content=b"{")
    assert broken.status_code == 400
    assert "not JSON" in broken.json()["error"]["message"]


def test_harmless_fields_are_taken(serve: Serve) -> None:
    plain = serve.complete("x")["choices"][0]["text"]
    assert serve.complete("x", priority=10, cache_salt="salt", seed=7, cahce_salt="")["choices"][0]["text"] == plain


def test_metrics_count(serve: Serve) -> None:
    def seen() -> dict[str, float]:
        return {
            name: serve.metric(name)
            for name in (
                "vllm:request_success_total",
                'dsv41_engram_lookups_total{layer="1",rank="0",source="disk"}',
                'dsv41_engram_lookups_total{layer="14",rank="1",source="disk"}',
                'dsv41_engram_lookups_total{layer="1",rank="1",source="remote"}',
                'dsv41_engram_lookups_total{layer="1",rank="1",source="fallback"}',
                "vllm:prefix_cache_hits_total",
                "vllm:prefix_cache_queries_total",
                "vllm:num_preemptions_total",
                "vllm:num_requests_running",
                "vllm:num_requests_waiting",
            )
        }

    before = seen()
    serve.complete("counted", max_tokens=5)
    grown = [after - before[name] for name, after in seen().items()]
    # One step for the prompt and one for each token but the last.
    assert grown == [1, 5, 5, 0, 0, 0, 0, 0, 0, 0]


def test_a_body_that_is_no_object_is_refused(serve: Serve) -> None:
    answer = serve.http.post("/tokenize", content=json.dumps([1]))
    assert answer.status_code == 400
