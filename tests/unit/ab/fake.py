"""A small serve with every trap of the real ones, as a transport: one character is one token."""

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from dsv41ctl.ab.client import Serve

URL = "http://serve.test:8001"


@dataclass
class FakeServe:
    """Deterministic unless `noise` is set. `refuse` names parameters answered with 400, `ignore` those passed over."""

    refuse: set[str] = field(default_factory=set)
    ignore: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    fail: list[int] = field(default_factory=list)
    noise: float = 0.0
    seed: int = 0
    shift: Callable[[int, float], float] | None = None
    hits_per_request: int = 0
    others: int = 0
    running: int = 0
    fallbacks: int = 0
    source: str | None = "disk"
    preemptions: int = 0
    model: str = "tiny"
    max_len: int = 4096
    cut_stream: bool = False
    stop_at: int | None = None
    fingerprint: str | None = "fake-1"
    requests: list[dict[str, Any]] = field(default_factory=list)
    _counts: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def client(self, **more: Any) -> Serve:
        return Serve(URL, transport=httpx.MockTransport(self.handle), sleep=lambda _: None, **more)

    def handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        pages: dict[str, Callable[[], httpx.Response]] = {
            "/metrics": lambda: httpx.Response(200, text=self._metrics()),
            "/version": lambda: httpx.Response(200, json={"version": "0.1"}),
            "/v1/models": lambda: httpx.Response(
                200, json={"data": [{"id": self.model, "max_model_len": self.max_len}]}
            ),
        }
        if path in self.missing:
            return httpx.Response(404, json={"error": {"message": "Not Found"}})
        return pages[path]() if path in pages else self._post(path, json.loads(request.content))

    def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        if path == "/tokenize":
            tokens = self._tokens(body)
            return httpx.Response(200, json={"count": len(tokens), "max_model_len": self.max_len, "tokens": tokens})
        self.requests.append(body)
        if self.fail and not self._is_probe(body):
            return httpx.Response(self.fail.pop(0), json={"error": {"message": "engine trouble"}})
        for name in self.refuse:
            if name in body:
                return self._no(f"{name} is not supported")
        if body.get("cache_salt") == "" and "cache_salt" not in self.ignore:
            return self._no("Parameter 'cache_salt' must be a non-empty string if provided.")
        body = {name: value for name, value in body.items() if name not in self.ignore}
        self._count(body)
        if body.get("stream"):
            return httpx.Response(200, stream=_Events(self._events(body)))
        chat = path.endswith("chat/completions")
        return httpx.Response(200, json=self._chat(body) if chat else self._completion(body))

    @staticmethod
    def _no(words: str) -> httpx.Response:
        return httpx.Response(400, json={"error": {"message": words, "type": "BadRequestError", "code": 400}})

    @staticmethod
    def _is_probe(body: dict[str, Any]) -> bool:
        return body.get("max_tokens", 16) <= 2

    def _count(self, body: dict[str, Any]) -> None:
        first = self._is_probe(body)
        for name, step in (
            ("finished", 1 + (0 if first else self.others)),
            ("hits", 0 if first else self.hits_per_request),
            ("preemptions", 0 if first else self.preemptions),
            ("fallback", 0 if first else self.fallbacks),
            ("own", 4),
        ):
            self._counts[name] = self._counts.get(name, 0) + step

    def _metrics(self) -> str:
        count = self._counts.get
        lines = [
            f'vllm:num_requests_running{{engine="0"}} {self.running}.0',
            'vllm:num_requests_waiting{engine="0"} 0.0',
            f"vllm:prefix_cache_hits_total {count('hits', 0)}",
            f"vllm:num_preemptions_total {count('preemptions', 0)}",
            f'vllm:request_success_total{{finished_reason="length"}} {count("finished", 0)}',
            'vllm:request_success_total{finished_reason="stop"} 0.0',
            "process_start_time_seconds 1000.5",
        ]
        if self.source:
            lines += [
                f'dsv41_engram_lookups_total{{layer="1",rank="0",source="{self.source}"}} {count("own", 0)}',
                f'dsv41_engram_lookups_total{{layer="1",rank="0",source="fallback"}} {count("fallback", 0)}',
            ]
        return "# TYPE x counter\n" + "\n".join(lines) + "\n"

    def _tokens(self, body: dict[str, Any]) -> list[int]:
        text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        return [ord(char) % 251 for char in text]

    def _row(self, context: tuple[int, ...], place: int) -> list[float]:
        """Log-probabilities of 24 tokens after a context."""
        rng = random.Random(repr(context[-6:]))
        logits = [rng.gauss(0, 2) for _ in range(24)]
        if self.noise:
            logits = [value + self._rng.gauss(0, self.noise) for value in logits]
        if self.shift:
            logits = [self.shift(place, value) if n == 0 else value for n, value in enumerate(logits)]
        total = math.log(math.fsum(math.exp(value) for value in logits))
        return [value - total for value in logits]

    @staticmethod
    def _text(token: int) -> str:
        # Tokens 20 to 23 look alike, as byte pieces do.
        return "\ufffd" if token >= 20 else chr(97 + token)

    def _name(self, token: int, body: dict[str, Any]) -> str:
        return f"token_id:{token}" if body.get("return_tokens_as_token_ids") else self._text(token)

    def _generate(self, body: dict[str, Any]) -> Iterator[tuple[int, list[float]]]:
        context = tuple(self._tokens(body))
        for step in range(body.get("max_tokens", 16)):
            if self.stop_at is not None and step >= self.stop_at:
                return
            row = self._row(context, len(context))
            token = max(range(len(row)), key=row.__getitem__)
            yield token, row
            context = (*context, token)

    def _top(self, row: list[float], count: int) -> list[int]:
        return sorted(range(len(row)), key=lambda token: -row[token])[:count]

    def _prompt(self, body: dict[str, Any]) -> list[dict[str, Any] | None] | None:
        count = body.get("prompt_logprobs")
        if count is None:
            return None
        tokens = self._tokens(body)
        rows: list[dict[str, Any] | None] = [None]
        for place in range(1, len(tokens)):
            row = self._row(tuple(tokens[:place]), place)
            entries: dict[str, Any] = {}
            own = tokens[place]
            # The prompt's own token may lie outside the alternatives: then there is one entry more.
            value = row[own] if own < len(row) else -9.5 - row[0] * 1e-3
            entries[str(own)] = {"logprob": value, "rank": 99, "decoded_token": chr(own)}
            for rank, token in enumerate(self._top(row, count), start=1):
                entries[str(token)] = {"logprob": row[token], "rank": rank, "decoded_token": "x"}
            rows.append(entries)
        return rows

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        steps = list(self._generate(body))
        tokens = [token for token, _ in steps]
        logprobs = None
        if body.get("logprobs") is not None:
            logprobs = {
                "tokens": [self._name(token, body) for token in tokens],
                "token_logprobs": [row[token] for token, row in steps],
                "top_logprobs": [
                    {self._name(token, body): row[token] for token in self._top(row, body["logprobs"])}
                    for _, row in steps
                ],
                "text_offset": [],
            }
        ids = body.get("return_token_ids")
        choice = {
            "text": "".join(self._text(token) for token in tokens),
            "finish_reason": "length",
            "logprobs": logprobs,
            "token_ids": tokens if ids else None,
            "prompt_token_ids": self._tokens(body) if ids else None,
            "prompt_logprobs": self._prompt(body),
        }
        return {
            "choices": [choice],
            "system_fingerprint": self.fingerprint,
            "usage": {"prompt_tokens": len(self._tokens(body)), "completion_tokens": len(tokens)},
        }

    def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        steps = list(self._generate(body))
        content = [
            {
                "token": self._name(token, body),
                "logprob": row[token],
                "top_logprobs": [
                    {"token": self._name(other, body), "logprob": row[other]}
                    for other in self._top(row, body["top_logprobs"])
                ],
            }
            for token, row in steps
        ]
        ids = body.get("return_token_ids")
        tokens = [token for token, _ in steps]
        return {
            "choices": [
                {
                    "message": {"content": "hm"},
                    "finish_reason": "length",
                    "logprobs": {"content": content},
                    "token_ids": tokens if ids else None,
                }
            ],
            "prompt_logprobs": self._prompt(body),
            "prompt_token_ids": self._tokens(body) if ids else None,
            "usage": {"prompt_tokens": len(self._tokens(body)), "completion_tokens": len(tokens)},
        }

    def _events(self, body: dict[str, Any]) -> Iterator[bytes]:
        steps = list(self._generate(body))
        for number, (token, _) in enumerate(steps):
            if self.cut_stream and number == 1 and not self._is_probe(body):
                return
            yield _sse({"choices": [{"index": 0, "text": self._text(token), "finish_reason": None}]})
        yield _sse({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        if body.get("stream_options"):
            usage = {"prompt_tokens": len(self._tokens(body)), "completion_tokens": len(steps)}
            yield _sse({"choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"


class _Events(httpx.SyncByteStream):
    def __init__(self, events: Iterator[bytes]) -> None:
        self._events = events

    def __iter__(self) -> Iterator[bytes]:
        yield from self._events


def _sse(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"
