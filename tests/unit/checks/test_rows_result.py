"""What the row tool says of itself counts, also where it compared nothing."""

import pytest

from dsv41ctl.checks.evaluate import Verdict
from dsv41ctl.checks.run import RowsResult

LAYER = {"layer": 1, "rows_compared": 10, "bad": 0, "first_bad": [], "corner_cases": 3, "fallbacks": 0}


def result(**said: object) -> RowsResult:
    return RowsResult.model_validate({"rank": 0, "seconds": 1.0, "layers": [], "verdict": "ok", **said})


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ({"layers": [LAYER]}, Verdict.PASS),
        ({}, Verdict.INCONCLUSIVE),
        ({"layers": [{**LAYER, "bad": 1}]}, Verdict.FAIL),
        ({"layers": [{**LAYER, "fallbacks": 1}]}, Verdict.INCONCLUSIVE),
        ({"layers": [LAYER], "refusals": {"tried": 12, "right": 11}}, Verdict.FAIL),
        ({"verdict": "wrong", "error": "OPEN refused by the server, status -101: identity"}, Verdict.FAIL),
        ({"verdict": "inconclusive", "error": "Connection refused"}, Verdict.INCONCLUSIVE),
        ({"layers": [LAYER], "verdict": "trouble", "error": "the shard ends early"}, Verdict.INCONCLUSIVE),
    ],
)
def test_verdict(said: dict[str, object], verdict: Verdict) -> None:
    assert result(**said).verdict is verdict
