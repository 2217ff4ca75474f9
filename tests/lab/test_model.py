"""The model: the same bits whatever the chunks, and rows that matter."""

from pathlib import Path

import numpy as np
import pytest
import torch
from lab_engine.group import Group
from lab_engine.model import TILE, Sequence
from lab_engine.worker import Worker

from tests.lab.conftest import TEXT

CONTEXT = np.frombuffer(TEXT[:400].encode(), dtype=np.uint8).astype(np.int64)


@pytest.fixture(scope="module")
def worker(model: Path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    worker = Worker(Group(0, 1, "127.0.0.1", 0, 1.0, 1.0), model, 512, 2)
    yield worker
    worker.close()
    torch.set_num_threads(threads)


def _logits(worker: Worker, chunks: list[int]) -> torch.Tensor:
    sequence = Sequence(worker.model.shape, len(CONTEXT))
    with torch.no_grad():
        return torch.cat([worker.step(sequence, CONTEXT, count, all_logits=True) for count in chunks])


@pytest.fixture(scope="module")
def whole(worker: Worker) -> torch.Tensor:
    return _logits(worker, [400])


@pytest.mark.parametrize(
    "chunks",
    [[1] * 70, [TILE - 1, 2, TILE], [100, 100, 100, 100], [399, 1], [7] * 57],
    ids=["decode", "around-a-tile", "hundreds", "one-left", "sevens"],
)
def test_chunks_do_not_change_a_bit(worker: Worker, whole: torch.Tensor, chunks: list[int]) -> None:
    got = _logits(worker, chunks)
    assert torch.equal(got, whole[: len(got)])


def test_last_logits_only_are_the_same(worker: Worker, whole: torch.Tensor) -> None:
    with torch.no_grad():
        last = worker.step(Sequence(worker.model.shape, 400), CONTEXT, 400, all_logits=False)
    assert torch.equal(last, whole[-1:])


@pytest.mark.parametrize("layer", [1, 14])
def test_one_wrong_row_moves_every_later_position(worker: Worker, layer: int) -> None:
    window = torch.from_numpy(CONTEXT.copy())
    with torch.no_grad():
        rows = worker.rows(window, 0)
        right = worker.model.forward(Sequence(worker.model.shape, 400), window, rows, all_logits=True)
        rows[layer][100, 7] = rows[layer][200, 7]
        wrong = worker.model.forward(Sequence(worker.model.shape, 400), window, rows, all_logits=True)
    moved = (right - wrong).abs().amax(-1)
    assert not moved[:100].any()
    assert moved[100] > 0.01
    assert (moved[101:] > 0).all()


def test_logits_are_those_of_a_language(worker: Worker, whole: torch.Tensor) -> None:
    assert torch.isfinite(whole).all()
    letters = torch.argmax(whole, dim=-1)
    assert ((letters >= 32) & (letters < 127)).float().mean() > 0.95
    assert len(letters.unique()) > 8
