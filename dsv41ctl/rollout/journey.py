"""The gates of a rollout in their order. Every decision is a gate's verdict; every change goes through apply."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dsv41ctl import ab
from dsv41ctl.apply import Outcome, Session, prebuild, server_build, server_start, server_status, stage, start, stop
from dsv41ctl.checks.evaluate import Report, Verdict
from dsv41ctl.checks.run import check, operator_manifest, verify_rows
from dsv41ctl.config import Cluster
from dsv41ctl.errors import Dsv41Error, Exit
from dsv41ctl.jsontypes import Json
from dsv41ctl.plan import Arm
from dsv41ctl.rollout.figures import bench_figures, ratio_figures
from dsv41ctl.rollout.gates import Gate, GateStopped, Tracker

__all__ = ["Journey", "Settings"]


@dataclass(frozen=True)
class Settings:
    """What a rollout is asked to do.

    Attributes:
        out: directory of captures, reports and the summary.
        runs_a: captures of A; two or more give the noise floor.
        runs_b: captures of B.
        bench: measure speed of both arms too.
        atomic: a gate that stops the rollout undoes to A and proves A.
    """

    out: Path
    runs_a: int = 2
    runs_b: int = 1
    bench: bool = True
    atomic: bool = True


class Journey:
    """One rollout over one session.

    Args:
        tracker: runs the gates; `gates` to callers that add their own.
        say: told in one line what is going on inside a gate.
    """

    def __init__(self, session: Session, tracker: Tracker, settings: Settings, say: Callable[[str], None]) -> None:
        self._session = session
        self.gates = tracker
        self.say = say
        self._settings = settings
        self._cluster: Cluster = session.cluster
        self._bench: dict[str, ab.BenchRun] = {}
        settings.out.mkdir(parents=True, exist_ok=True)

    def to_b(self) -> None:
        """From whatever is up to a proven B.

        Raises:
            GateStopped: a gate said no; with `atomic` the cluster is back in A, or the summary says what is left.
        """
        try:
            self._prove_a()
        except GateStopped:
            self.gates.summary.ended = "unchanged: B was not begun"
            raise
        try:
            self._bring_b()
        except GateStopped:
            if self._settings.atomic:
                self._undo()
            else:
                self.gates.summary.ended = "stopped where the gate failed; `dsv41ctl rollback` brings A back"
            raise
        self.gates.summary.ended = "B"

    def to_a(self, *, purge: bool = False) -> None:
        """Back to a proven A.

        Raises:
            GateStopped: A could not be proven.
        """
        with self.gates.gate("rollback") as gate:
            outcome = start(self._session, "A")
            if purge:
                stage(self._session, purge=True)
            gate.passed(self._words(outcome) + ("; staged files removed" if purge else ""), **_steps(outcome))
        with self.gates.gate("A is A") as gate:
            self._check(gate, "A")
        self.gates.summary.ended = "A"

    def _prove_a(self) -> None:
        with self.gates.gate("table server") as gate:
            server_build(self._session)
            server_start(self._session)
            self._server(gate)
        with self.gates.gate("A serves") as gate:
            start(self._session, "A")
            self._check(gate, "A")
        captures = [self._capture("A", number) for number in range(1, self._settings.runs_a + 1)]
        if len(captures) > 1:
            with self.gates.gate("noise floor") as gate:
                self._floor(gate, captures)
        if self._settings.bench:
            self._run_bench("A")

    def _bring_b(self) -> None:
        with self.gates.gate("stage") as gate:
            outcome = stage(self._session)
            gate.passed(self._words(outcome), **_steps(outcome))
        with self.gates.gate("prebuild") as gate:
            # Building next to resident weights is what the runbook avoids.
            stop(self._session)
            outcome = prebuild(self._session)
            gate.passed(self._words(outcome), **_steps(outcome))
        with self.gates.gate("start B") as gate:
            outcome = start(self._session, "B")
            gate.passed(self._words(outcome), **_steps(outcome))
        with self.gates.gate("B is B") as gate:
            self._check(gate, "B")
        with self.gates.gate("rows byte-exact") as gate:
            self._rows(gate)
        captures = [self._capture("B", number) for number in range(1, self._settings.runs_b + 1)]
        with self.gates.gate("A against B") as gate:
            self._compare(gate, captures)
        if self._settings.bench:
            self._run_bench("B")
        with self.gates.gate("B is still B") as gate:
            # Counters after all the traffic: a fallback anywhere in it means that the run measured a mix.
            self._check(gate, "B")

    def _undo(self) -> None:
        try:
            with self.gates.gate("undo to A") as gate:
                start(self._session, "A")
                self._check(gate, "A")
            self.gates.summary.ended = "A (undone)"
        except Dsv41Error:
            self.gates.summary.ended = "not A: undoing failed too; `dsv41ctl status` names what is left"

    def _words(self, outcome: Outcome) -> str:
        words = [step.word.value for step in outcome.steps]
        counts = [f"{words.count(word)} {word}" for word in dict.fromkeys(words)]
        return f"{', '.join(counts) or 'nothing to do'}"

    def _server(self, gate: Gate) -> None:
        # Only the layers that the manifest names prove anything; an unverified table is never served.
        identities = operator_manifest(self._session).identities
        for server in server_status(self._session):
            status = server.status
            if status is None:
                gate.unclear(f"{server.host}: {server.problem or 'no status'}")
                return
            wrong = [table.layer for table in status.tables if table.identity != identities.get(table.layer)]
            if not status.ready or wrong or not all(table.verified for table in status.tables):
                gate.failed(f"{server.host}: not ready, or layers {wrong} hold another table")
                return
            rows = sum(table.rows for table in status.tables)
            gate.passed(
                f"{server.host}: {len(status.tables)} tables, {rows:,} rows verified, "
                f"huge pages {status.huge_share:.0%}",
                rows=rows,
                rss_bytes=status.rss_bytes,
                huge_share=round(status.huge_share, 4),
                load_s=round(max(table.load_s for table in status.tables), 3),
            )

    def _check(self, gate: Gate, arm: Arm) -> None:
        self.say(f"checking that {arm} is {arm}")
        report = check(self._session, arm)
        _judge(gate, report)

    def _path(self, arm: str, number: int) -> Path:
        return self._settings.out / f"{arm}{number}.jsonl.gz"

    def _capture(self, arm: Arm, number: int) -> Path:
        path = self._path(arm, number)
        with self.gates.gate(f"capture {arm}{number}") as gate:
            settings = ab.CaptureSettings.from_config(
                self._cluster.ab,
                url=self._cluster.serve.url,
                label=f"{arm}{number}",
                out=path,
                model=self._cluster.serve.model,
                arm={"configuration": arm, "proven_by": "check", "cluster": self._cluster.name},
                overwrite=True,
            )
            summary = ab.capture(settings, lambda progress: self.say(f"{arm}{number}: {progress.text}"))
            figures: dict[str, Json] = {
                "prompts": summary.prompts,
                "generated_tokens": summary.generated_tokens,
                "prompt_positions": summary.prompt_positions,
                "sha256": summary.sha256,
            }
            if summary.clean:
                text = f"{summary.prompts} prompts, {summary.prompt_positions:,} positions"
                gate.passed(text, **figures)
            else:
                gate.unclear("; ".join(summary.marks), **figures)
        return path

    def _floor(self, gate: Gate, captures: list[Path]) -> None:
        comparison = ab.compare(captures[:1], captures[1:], self._cluster.ab.floor_factor)
        document = ab.comparison_json(comparison)
        (self._settings.out / "floor.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
        figures: dict[str, Json] = {"verdict": comparison.verdict.value}
        if comparison.verdict is ab.Verdict.INCONCLUSIVE and not _measured(comparison):
            gate.unclear("; ".join(comparison.reasons) or "the captures have no prompt in common", **figures)
        elif comparison.verdict is ab.Verdict.IDENTICAL:
            gate.passed("A against A is identical: B must be identical too", **figures)
        else:
            # Two captures that differ are a floor, not a fault: A against B is measured against it.
            gate.passed("A against A differs: B may differ as much", **figures)

    def _compare(self, gate: Gate, captures_b: list[Path]) -> None:
        captures_a = [self._path("A", number) for number in range(1, self._settings.runs_a + 1)]
        comparison = ab.compare(captures_a, captures_b, self._cluster.ab.floor_factor)
        html = self._settings.out / "report.html"
        ab.write_report(comparison, html, self._settings.out / "report.json")
        self.gates.summary.report = str(html)
        text = f"{comparison.verdict.value}: {'; '.join(comparison.reasons) or comparison.rule}"
        if comparison.verdict in (ab.Verdict.IDENTICAL, ab.Verdict.WITHIN_FLOOR):
            gate.passed(text, verdict=comparison.verdict.value)
        elif comparison.verdict is ab.Verdict.DIFFERENT:
            gate.failed(text, verdict=comparison.verdict.value)
        else:
            gate.unclear(text, verdict=comparison.verdict.value)

    def _rows(self, gate: Gate) -> None:
        self.say("comparing rows byte by byte")
        results = verify_rows(self._session)
        errors = [f"{name}: {result.error}" for name, result in results.items() if result.error]
        rows = sum(result.rows for result in results.values())
        bad = sum(result.bad for result in results.values())
        refusals = {name: result.refusals for name, result in results.items() if result.refusals}
        refused = ", ".join(f"{name} {seen.right}/{seen.tried}" for name, seen in refusals.items())
        text = "; ".join([f"{rows:,} rows compared, {bad} bad; refusals {refused or 'not tried'}", *errors])
        figures: dict[str, Json] = {
            "rows_compared": rows,
            "bad": bad,
            "refusals": {name: {"tried": seen.tried, "right": seen.right} for name, seen in refusals.items()},
        }
        verdicts = {result.verdict for result in results.values()}
        if Verdict.FAIL in verdicts:
            first = {
                f"{name} layer {layer.layer}": layer.first_bad[:4]
                for name, result in results.items()
                for layer in result.layers
                if layer.bad
            }
            gate.failed(f"{text}; first bad ids: {first}" if first else text, **figures)
        elif verdicts == {Verdict.PASS}:
            gate.passed(text, **figures)
        else:
            gate.unclear(text, **figures)

    def _run_bench(self, arm: Arm) -> None:
        with self.gates.gate(f"bench {arm}") as gate:
            settings = ab.BenchSettings.from_config(
                self._cluster.bench, url=self._cluster.serve.url, label=arm, model=self._cluster.serve.model
            )
            run = ab.run_bench(settings, lambda progress: self.say(f"bench {arm}: {progress.text}"))
            self._bench[arm] = run
            ab.write_bench(run, self._settings.out / f"bench_{arm}.json")
            figures: dict[str, Json] = {"state": run.state}
            if arm == "B" and run.state == "mixed":
                gate.failed("fallbacks moved during the run: it measured a mix of A and B", **figures)
                return
            if arm == "B" and run.state != "clean":
                gate.unclear("the run could not be shown to be free of fallbacks", **figures)
                return
            figures["medians"] = run.as_json()["medians"]
            text = bench_figures(run)
            if arm == "B" and "A" in self._bench:
                comparison = ab.compare_bench(self._bench["A"], run)
                figures["against_A"] = comparison.as_json()
                text = ratio_figures(comparison)
            gate.passed(text, **figures)


def _measured(comparison: ab.Comparison) -> bool:
    """Whether two captures show a floor at all: the same prompts, each with positions that were compared."""
    return bool(comparison.prompts) and all(prompt.generated.positions for prompt in comparison.prompts)


def _judge(gate: Gate, report: Report) -> None:
    passed = sum(row.verdict is Verdict.PASS for row in report.rows)
    figures: dict[str, Json] = {"rows": len(report.rows), "passed": passed}
    if report.verdict is Verdict.PASS:
        gate.passed(f"{passed} of {len(report.rows)} checks", **figures)
        return
    wrong = [row for row in report.rows if row.verdict is report.verdict]
    first = wrong[0]
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    text = f"{first.where}: {first.what}: expected {first.expected}, seen {first.seen}{more}"
    figures["not_passed"] = [f"{row.where}: {row.what}: {row.seen}" for row in wrong]
    if report.verdict is Verdict.FAIL:
        gate.failed(text, **figures)
    else:
        gate.unclear(text, **figures)


def _steps(outcome: Outcome) -> dict[str, Json]:
    return {"changed": outcome.changed, "unchanged": outcome.unchanged, "exit": int(Exit.DONE)}
