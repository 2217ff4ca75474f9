"""The command line: parse arguments, call, render. No decisions here."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from dsv41ctl import __version__
from dsv41ctl.cli.context import Options, hoist, note

__all__ = ["app", "main"]

app = typer.Typer(
    name="dsv41ctl",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    # A traceback with local variables would print secrets.
    pretty_exceptions_enable=False,
    help="Carries a cluster from local Engram rows (A) to Remote Engram (B), proves it, and brings it back.",
)


def _version(value: bool) -> None:
    if value:
        print(f"dsv41ctl {__version__}")  # noqa: T201
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", envvar="DSV41_CLUSTER", help="The cluster file (TOML).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Render every step, change nothing.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Open no connection at all; implies --dry-run.")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a destructive step.")] = False,
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    ctx.obj = Options(cluster=cluster, dry_run=dry_run or offline, offline=offline, json=json, yes=yes)


# Every room of verbs: an `app` mounted under a name, or `register(app)` that adds verbs to the root.
_GROUPS = {
    "tables": "dsv41ctl.cli.tables",
    "server": "dsv41ctl.cli.server",
    "overlay": "dsv41ctl.cli.overlay",
    "ab": "dsv41ctl.cli.ab",
    "bench": "dsv41ctl.cli.bench",
    "lab": "dsv41ctl.cli.lab",
    "verify": "dsv41ctl.cli.verify",
}
_VERBS = ("dsv41ctl.cli.stage", "dsv41ctl.cli.serve_verbs", "dsv41ctl.cli.check", "dsv41ctl.cli.rollout")

for _name, _module in _GROUPS.items():
    app.add_typer(import_module(_module).app, name=_name, rich_help_panel=None)
for _module in _VERBS:
    import_module(_module).register(app)


def main() -> None:
    """Entry point; every exception becomes one line and one exit code here."""
    from dsv41ctl.errors import Dsv41Error, exit_code

    try:
        app(args=hoist(sys.argv[1:]), prog_name="dsv41ctl")
    except Dsv41Error as error:
        note(f"dsv41ctl: {error}")
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        note("dsv41ctl: interrupted; `dsv41ctl status` shows what is where")
        sys.exit(130)
    except BrokenPipeError:
        # The reader of stdout went away (`| head`); nothing is wrong here.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
