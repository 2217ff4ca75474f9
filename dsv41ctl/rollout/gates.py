"""Gates and the summary of a rollout. Pure but for the clock."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dsv41ctl.checks.evaluate import Verdict
from dsv41ctl.errors import CheckFailed, Dsv41Error, Exit, Inconclusive
from dsv41ctl.jsontypes import Json

__all__ = ["Gate", "GateStopped", "Summary", "Tracker"]


@dataclass
class Gate:
    """One step of a rollout that can say no.

    Attributes:
        figures: what was measured, for the summary.
        detail: one line for a person.
    """

    name: str
    verdict: Verdict = Verdict.INCONCLUSIVE
    seconds: float = 0.0
    figures: dict[str, Json] = field(default_factory=dict)
    detail: str = ""

    def passed(self, detail: str, **figures: Json) -> None:
        """Says yes."""
        self._say(Verdict.PASS, detail, figures)

    def failed(self, detail: str, **figures: Json) -> None:
        """Says no; leaving the gate stops the rollout."""
        self._say(Verdict.FAIL, detail, figures)

    def unclear(self, detail: str, **figures: Json) -> None:
        """Data is missing; leaving the gate stops the rollout."""
        self._say(Verdict.INCONCLUSIVE, detail, figures)

    def _say(self, verdict: Verdict, detail: str, figures: dict[str, Json]) -> None:
        self.verdict = verdict
        self.detail = detail
        self.figures.update(figures)


class GateStopped(Dsv41Error):
    """A gate said no, or could not say.

    Args:
        gate: the gate.
        code: exit code of the whole rollout.
    """

    def __init__(self, gate: Gate, code: Exit) -> None:
        super().__init__(f"gate `{gate.name}`: {gate.verdict.value}: {gate.detail}")
        self.gate = gate
        self.code = code


@dataclass
class Summary:
    """What a rollout was, gate by gate.

    Attributes:
        ended: `B`, `A`, `A (undone)`, or what is left where undoing failed too.
    """

    cluster: str
    gates: list[Gate] = field(default_factory=list)
    ended: str = ""
    report: str | None = None

    @property
    def verdict(self) -> Verdict:
        """FAIL over INCONCLUSIVE over PASS; a rollout without gates is inconclusive."""
        verdicts = {gate.verdict for gate in self.gates}
        for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
            if verdict in verdicts:
                return verdict
        return Verdict.PASS if verdicts else Verdict.INCONCLUSIVE

    def as_json(self) -> dict[str, Json]:
        """Schema 1 of the summary document."""
        gates: list[Json] = [
            {
                "gate": gate.name,
                "verdict": gate.verdict.value,
                "seconds": round(gate.seconds, 3),
                "detail": gate.detail,
                "figures": gate.figures,
            }
            for gate in self.gates
        ]
        return {
            "schema": 1,
            "cluster": self.cluster,
            "verdict": self.verdict.value,
            "ended": self.ended,
            "report": self.report,
            "gates": gates,
        }


class Tracker:
    """Runs gates in order, times them, and tells a listener as they begin and end."""

    def __init__(self, summary: Summary, listener: Callable[[Gate, bool], None]) -> None:
        self.summary = summary
        self._listener = listener

    @contextmanager
    def gate(self, name: str) -> Iterator[Gate]:
        """One gate. A body that raises fails it; a body that says nothing leaves it inconclusive.

        Raises:
            GateStopped: the gate did not pass.
        """
        gate = Gate(name)
        self.summary.gates.append(gate)
        self._listener(gate, False)
        begun = time.monotonic()
        try:
            try:
                yield gate
            except CheckFailed as error:
                gate.failed(str(error))
                raise GateStopped(gate, Exit.CHECK_SAYS_NO) from error
            except Inconclusive as error:
                gate.unclear(str(error))
                raise GateStopped(gate, Exit.INCONCLUSIVE) from error
            except Dsv41Error as error:
                gate.failed(str(error))
                raise GateStopped(gate, Exit(int(error.code))) from error
            except KeyboardInterrupt:
                gate.unclear("interrupted")
                raise
            except Exception as error:
                gate.failed(f"{type(error).__name__}: {error}")
                raise
            if gate.verdict is Verdict.FAIL:
                raise GateStopped(gate, Exit.CHECK_SAYS_NO)
            if gate.verdict is Verdict.INCONCLUSIVE:
                gate.detail = gate.detail or "no verdict"
                raise GateStopped(gate, Exit.INCONCLUSIVE)
        finally:
            gate.seconds = time.monotonic() - begun
            self._listener(gate, True)
