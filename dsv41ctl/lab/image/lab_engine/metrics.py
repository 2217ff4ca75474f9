"""Counters, and their text form for /metrics."""

import threading
from dataclasses import dataclass, field

__all__ = ["SOURCES", "Metrics"]

SOURCES = ("disk", "remote", "fallback")


@dataclass
class Metrics:
    """What the engine counts. Written by the engine's thread, read by the API."""

    model: str
    layers: tuple[int, ...]
    tp: int
    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})
    # [rank][layer index][source]: lookups since the serve started, as the ranks last reported them.
    lookups: list[list[list[int]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def text(self) -> str:
        """The Prometheus text format."""
        name = f'model_name="{self.model}",engine="0"'
        with self.lock:
            lines = [
                *_metric("vllm:num_requests_running", "gauge", "Requests that are computed now", {name: self.running}),
                *_metric("vllm:num_requests_waiting", "gauge", "Requests that wait", {name: self.waiting}),
                # There is no prefix cache here, so nothing is ever asked of one.
                *_metric("vllm:prefix_cache_queries_total", "counter", "Tokens asked of the prefix cache", {name: 0}),
                *_metric("vllm:prefix_cache_hits_total", "counter", "Tokens found in the prefix cache", {name: 0}),
                *_metric("vllm:num_preemptions_total", "counter", "Requests put back in the queue", {name: 0}),
                *_metric("vllm:prompt_tokens_total", "counter", "Prompt tokens computed", {name: self.prompt_tokens}),
                *_metric("vllm:generation_tokens_total", "counter", "Tokens generated", {name: self.generation_tokens}),
                *_metric(
                    "vllm:request_success_total",
                    "counter",
                    "Requests that ended",
                    {f'finished_reason="{why}",{name}': count for why, count in self.finished.items()},
                ),
                *_metric(
                    "dsv41_engram_lookups_total",
                    "counter",
                    "Engram lookups by where their rows came from",
                    {
                        f'layer="{layer}",rank="{rank}",source="{source}"': self.lookups[rank][index][column]
                        for rank in range(len(self.lookups))
                        for index, layer in enumerate(self.layers)
                        for column, source in enumerate(SOURCES)
                    },
                ),
            ]
        return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, words: str, values: dict[str, int]) -> list[str]:
    head = [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
    return head + [f"{name}{{{labels}}} {float(value)}" for labels, value in values.items()]
