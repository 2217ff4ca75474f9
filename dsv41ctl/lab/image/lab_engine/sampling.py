"""Picks tokens from logits, and ranks them for logprobs."""

from dataclasses import dataclass

import numpy as np
import torch

__all__ = ["Ranked", "Sampler", "rank_tokens"]

_LEAST = -9999.0


@dataclass(frozen=True)
class Ranked:
    """One position: the actual token, its logprob and rank, and the most likely tokens."""

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


def rank_tokens(logits: torch.Tensor, tokens: list[int], top: int) -> list[Ranked]:
    """Logprobs of `tokens` [n] under logits [n, vocab], with the `top` likeliest of each position."""
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(1, torch.tensor(tokens)[:, None])
    ranks = (logprobs >= chosen).sum(-1).tolist()
    if top:
        values, indices = (part.tolist() for part in torch.sort(logprobs, dim=-1, descending=True, stable=True))
    else:
        values, indices = [[]] * len(tokens), [[]] * len(tokens)
    return [
        Ranked(
            token=token,
            logprob=max(logprob, _LEAST),
            rank=rank,
            top=tuple((index, max(value, _LEAST)) for index, value in zip(near[:top], best[:top], strict=True)),
        )
        for token, (logprob,), rank, near, best in zip(tokens, chosen.tolist(), ranks, indices, values, strict=True)
    ]


class Sampler:
    """Greedy at temperature 0, else drawn from the softmax with a seed."""

    def __init__(self, temperature: float, top_p: float, top_k: int, seed: int | None) -> None:
        self._temperature = temperature
        self._top_p = top_p
        self._top_k = top_k
        self._random = np.random.default_rng(seed)

    def pick(self, logits: torch.Tensor) -> int:
        """The next token after logits [vocab]."""
        # Colder than this would overflow, and is greedy anyway.
        if self._temperature < 1e-5:
            return int(torch.argmax(logits))
        scaled = logits.double().numpy() / self._temperature
        order = np.argsort(-scaled, kind="stable")
        weights = np.exp(scaled[order] - scaled[order[0]])
        weights /= weights.sum()
        keep = len(order) if self._top_k <= 0 else self._top_k
        # The first token that reaches top_p stays in.
        keep = min(keep, int(np.searchsorted(np.cumsum(weights), self._top_p)) + 1)
        weights = weights[:keep] / weights[:keep].sum()
        return int(order[min(int(np.searchsorted(np.cumsum(weights), self._random.random())), keep - 1)])
