"""A and B measured in turn on the lab, so that a drift of the machine falls on both."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table

from dsv41ctl import ab
from dsv41ctl.apply import open_session, prebuild, server_build, server_start, stage, start, stop
from dsv41ctl.config import Cluster
from dsv41ctl.errors import Inconclusive
from dsv41ctl.jsontypes import Json
from dsv41ctl.lab.verbs import down, up
from dsv41ctl.plan import Arm

__all__ = ["Measured", "measure"]


@dataclass(frozen=True)
class Measured:
    """One comparison a round."""

    rounds: tuple[ab.BenchComparison, ...]

    def as_json(self) -> dict[str, Json]:
        """Schema 1."""
        return {"schema": 1, "rounds": [comparison.as_json() for comparison in self.rounds]}

    def view(self) -> RenderableType:
        """One line a round and figure."""
        table = Table(title="A against B, round by round")
        for column in ("round", "figure", "A", "B", "B/A", "interval"):
            table.add_column(column)
        for number, comparison in enumerate(self.rounds, start=1):
            for row in comparison.rows:
                table.add_row(str(number), *row.cells())
        return table


def measure(cluster: Cluster, out: Path, rounds: int, console: Console) -> Measured:
    """Brings the lab up, measures, and takes it down.

    Raises:
        Inconclusive: a run of B was mixed with local rows.
    """
    out.mkdir(parents=True, exist_ok=True)
    found: list[ab.BenchComparison] = []
    with console.status("bench") as status, open_session(cluster, "lab bench") as session:
        up(cluster, status.update)
        server_build(session)
        server_start(session)
        stage(session)
        stop(session)
        prebuild(session)
        try:
            for number in range(1, rounds + 1):
                runs: dict[str, ab.BenchRun] = {}
                arms: tuple[Arm, Arm] = ("A", "B") if number % 2 else ("B", "A")
                for arm in arms:
                    status.update(f"round {number}: {arm}")
                    start(session, arm)
                    settings = ab.BenchSettings.from_config(
                        cluster.bench, url=cluster.serve.url, label=f"{arm}{number}", model=cluster.serve.model
                    )
                    runs[arm] = ab.run_bench(settings)
                    ab.write_bench(runs[arm], out / f"{arm}{number}.json")
                if runs["B"].state != "clean":
                    raise Inconclusive(f"round {number}: the run of B is {runs['B'].state}")
                found.append(ab.compare_bench(runs["A"], runs["B"]))
        finally:
            down(session)
    return Measured(tuple(found))
