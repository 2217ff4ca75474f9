"""One rank's work: hash ids, look rows up, gather them over the ranks; on rank 0 also the dense model."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from lab_engine import engram
from lab_engine.group import Group
from lab_engine.metrics import SOURCES
from lab_engine.model import LabModel, Sequence
from lab_engine.shards import load_dense, read_config

__all__ = ["Worker", "follow"]

_STEP, _COUNT, _STOP = 1, 2, 3


class Worker:
    """One rank. Only rank 0 holds the dense model: its weights are the same on every rank, and so is its result."""

    def __init__(self, group: Group, model_dir: Path, max_tokens: int, disk_threads: int) -> None:
        config = read_config(model_dir)
        self.group = group
        self.max_tokens = max_tokens
        self.geometry = engram.EngramGeometry.from_config(config)
        self.hash = engram.NgramHash(self.geometry)
        self.embeddings = {
            layer: engram.ParallelEngramEmbedding(
                layer, self.geometry, group.rank, group.tp, model_dir, max_tokens, disk_threads
            )
            for layer in self.geometry.layer_ids
        }
        self._model = LabModel(config, load_dense(model_dir)) if group.rank == 0 else None
        tables = ", ".join(
            f"layer {layer} rows [{table.row_start}, {table.row_end})" for layer, table in self.embeddings.items()
        )
        print(
            f"lab_engine: rank {group.rank}/{group.tp} engram module {engram.__file__} "
            f"configuration {engram.configuration()} tables {tables} pid {os.getpid()}",
            flush=True,
        )

    @property
    def model(self) -> LabModel:
        """The dense model; rank 0 only."""
        if self._model is None:
            raise RuntimeError(f"rank {self.group.rank} holds no dense model; rank 0 does")
        return self._model

    def step(self, sequence: Sequence, context: np.ndarray, count: int, *, all_logits: bool) -> torch.Tensor:
        """Rank 0: computes `count` more positions of a sequence whose tokens so far are `context`."""
        begin = sequence.length
        before = min(begin, self.geometry.lookback)
        window = torch.from_numpy(context[begin - before : begin + count].copy())
        self.group.broadcast(_STEP, [before], window)
        rows = self.rows(window, before)
        return self.model.forward(sequence, window[before:], rows, all_logits=all_logits)

    def count(self) -> list[list[list[int]]]:
        """Rank 0: lookups of every rank by layer and source. Also proves that every rank still answers."""
        self.group.broadcast(_COUNT, [], None)
        return self.lookups()

    def stop(self) -> None:
        """Rank 0: tells the other ranks that the serve ends."""
        self.group.broadcast(_STOP, [], None)

    def close(self) -> None:
        """Closes this rank's tables."""
        for embedding in self.embeddings.values():
            embedding.close()

    def rows(self, window: torch.Tensor, before: int) -> dict[int, torch.Tensor]:
        """Collective: all heads' rows of the window's tokens but the first `before`, by layer."""
        tokens = window.numpy()
        ids = torch.from_numpy(self.hash.ids(tokens[before:], tokens[:before]))
        for index, layer in enumerate(self.geometry.layer_ids):
            self.embeddings[layer].enqueue(ids[:, index])
        rows = {}
        for layer in self.geometry.layer_ids:
            embedding = self.embeddings[layer]
            mine = embedding.finish()
            if embedding.local_heads < embedding.part:
                padding = mine.new_zeros(mine.shape[0], embedding.part - embedding.local_heads, mine.shape[2])
                mine = torch.cat((mine, padding), dim=1)
            rows[layer] = torch.cat(self.group.all_gather(mine), dim=1)[:, : self.geometry.columns]
        return rows

    def lookups(self) -> list[list[list[int]]]:
        """Collective: lookups of every rank by layer and source."""
        mine = [[self.embeddings[layer].counters()[name] for name in SOURCES] for layer in self.geometry.layer_ids]
        return [part.tolist() for part in self.group.all_gather(torch.tensor(mine, dtype=torch.int64))]


def follow(worker: Worker, stopping: Callable[[], bool]) -> None:
    """The other ranks: do what rank 0 broadcasts, until it says stop."""
    while not stopping():
        kind, numbers, payload = worker.group.receive()
        if kind == _STEP:
            worker.rows(payload, numbers[0])
        elif kind == _COUNT:
            worker.lookups()
        else:
            print(f"lab_engine: rank {worker.group.rank}: rank 0 ends the serve", flush=True)
            return
