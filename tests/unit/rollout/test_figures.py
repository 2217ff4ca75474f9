"""Gates in few words, and what counts as a floor."""

from types import SimpleNamespace

import pytest

from dsv41ctl.rollout.figures import ratio_figures
from dsv41ctl.rollout.journey import _measured


@pytest.mark.parametrize(
    ("positions", "measured"), [([], False), ([0], False), ([5, 0], False), ([5], True), ([5, 9], True)]
)
def test_a_floor_needs_positions_of_every_prompt(positions: list[int], measured: bool) -> None:
    prompts = [SimpleNamespace(generated=SimpleNamespace(positions=count)) for count in positions]
    assert _measured(SimpleNamespace(prompts=prompts)) is measured  # type: ignore[arg-type]


def test_ratios_in_words() -> None:
    row = SimpleNamespace(concurrency=1, figure="ttft_s", prompt_tokens=1024, ratio=0.5, interval=(0.4, 0.625))
    other = SimpleNamespace(concurrency=2, figure="ttft_s", prompt_tokens=1024, ratio=9.0, interval=None)
    shown = ratio_figures(SimpleNamespace(rows=[row, other], verdict="measured"))  # type: ignore[arg-type]
    assert shown == "B/A: TTFT at 1,024 tokens 0.50 (0.40 to 0.62)"
