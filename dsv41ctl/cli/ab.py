"""`ab`: capture outputs of an arm, and compare arms by A's own noise floor."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv41ctl.cli.context import Json, emit, note, options

if TYPE_CHECKING:
    from dsv41ctl.ab.settings import CaptureSettings
    from dsv41ctl.config import Cluster

__all__ = ["app", "numbers", "sides"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Compare outputs of A and B.")


@app.callback()
def _group() -> None:
    """Compare outputs of A and B."""


@app.command()
def run(
    ctx: typer.Context,
    label: Annotated[str, typer.Option(help="Name of this run, e.g. A1.")],
    out: Annotated[Path, typer.Option(help="Capture file to write; compressed when it ends in .gz.")],
    url: Annotated[str | None, typer.Option(help="The serve, http://HOST:PORT (default: cluster file).")] = None,
    data: Annotated[Path | None, typer.Option(help="JSONL with prompts (default: cluster file, or built in).")] = None,
    field: Annotated[str | None, typer.Option(help="Text field of its records (default: text).")] = None,
    sizes: Annotated[str | None, typer.Option(help="Prompt sizes in tokens, e.g. 64,8192,32768.")] = None,
    model: Annotated[str | None, typer.Option(help="Served model name.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Generated tokens a prompt (default 64).")] = None,
    logprobs: Annotated[int | None, typer.Option(min=1, help="Alternatives a generated token (default 20).")] = None,
    prompt_logprobs: Annotated[
        int | None, typer.Option(min=-1, help="Alternatives a prompt position (default 1); -1: no teacher forcing.")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="Request priority (default 10).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the built-in text.")] = 41,
    chat: Annotated[bool, typer.Option("--chat", help="Use the chat API, thinking off.")] = False,
    timeout: Annotated[float | None, typer.Option(min=0.1, help="Seconds a request may take.")] = None,
    attempts: Annotated[int, typer.Option(min=1, max=10, help="Requests a prompt, when the serve fails.")] = 3,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    api_key_env: Annotated[str | None, typer.Option(help="Variable that holds the API key.")] = None,
) -> None:
    """Capture one arm: greedy, one prompt at a time, with the serve's counters read around each."""
    from dataclasses import replace

    from dsv41ctl.ab.settings import CaptureSettings
    from dsv41ctl.config.model import Ab
    from dsv41ctl.errors import Exit

    given = options(ctx)
    cluster = given.load() if given.cluster is not None else None
    defaults = CaptureSettings.from_config(
        cluster.ab if cluster else Ab(),
        url=serve_url(cluster, url),
        label=label,
        out=out,
        model=model or (cluster.serve.model if cluster else None),
        seed=seed,
        chat=chat,
        attempts=attempts,
        resume=resume,
        overwrite=given.yes,
        api_key=api_key(api_key_env),
    )
    settings = replace(
        defaults,
        data=data or defaults.data,
        field=field or defaults.field,
        sizes=numbers(sizes, "--sizes") if sizes else defaults.sizes,
        max_tokens=max_tokens or defaults.max_tokens,
        top_logprobs=logprobs or defaults.top_logprobs,
        prompt_logprobs=_forcing(prompt_logprobs, defaults.prompt_logprobs),
        priority=defaults.priority if priority is None else priority,
        timeout_s=timeout or defaults.timeout_s,
    )
    if given.dry_run:
        _would_capture(ctx, settings)
        return
    from dsv41ctl.ab import capture
    from dsv41ctl.ab.render import summary_view

    summary = capture(settings, lambda progress: note(f"{label}: {progress.text}"))
    emit(ctx, summary.as_json(), lambda: summary_view(summary))
    if not summary.clean:
        note(f"dsv41ctl: {out} is marked; `ab compare` will say inconclusive for the prompts named above")
        raise typer.Exit(int(Exit.INCONCLUSIVE))


def _forcing(asked: int | None, default: int | None) -> int | None:
    return default if asked is None else None if asked < 0 else asked


def _would_capture(ctx: typer.Context, settings: "CaptureSettings") -> None:
    source = str(settings.data) if settings.data else f"built-in text, seed {settings.seed}"
    document: dict[str, Json] = {
        "schema": 1,
        "would": "capture",
        "url": settings.url,
        "label": settings.label,
        "out": str(settings.out),
        "source": source,
        "sizes": list(settings.sizes),
        "max_tokens": settings.max_tokens,
        "logprobs": settings.top_logprobs,
        "prompt_logprobs": settings.prompt_logprobs,
        "priority": settings.priority,
    }
    text = f"would change {settings.out}: capture {settings.label} from {settings.url}, {len(settings.sizes)} prompts"
    emit(ctx, document, lambda: f"{text} of {', '.join(map(str, settings.sizes))} tokens, {source}")


@app.command()
def compare(
    ctx: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="A and B; or several runs, told apart by label (A1 A2 B1).")],
    b: Annotated[list[Path] | None, typer.Option("--b", help="A run of B; the others are A. Repeatable.")] = None,
    floor: Annotated[tuple[Path, Path] | None, typer.Option(help="Two runs of A that give the noise floor.")] = None,
    floor_factor: Annotated[
        float | None, typer.Option(min=1.0, help="How far A-B may exceed the floor (default 1.5).")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a report page here.")] = None,
    report_json: Annotated[Path | None, typer.Option(help="Also write the JSON document here.")] = None,
) -> None:
    """Compare captures: exit 0 identical or within the floor, 3 different, 5 inconclusive."""
    from dsv41ctl.ab import compare as compare_files
    from dsv41ctl.ab import comparison_json, write_report
    from dsv41ctl.ab.render import comparison_view
    from dsv41ctl.config.model import Ab

    given = options(ctx)
    if floor_factor is None:
        floor_factor = (given.load().ab if given.cluster is not None else Ab()).floor_factor
    side_a, side_b = (files, b) if b else sides(files)
    comparison = compare_files(side_a, side_b, floor_factor, floor or ())
    if not given.dry_run:
        write_report(comparison, html, report_json)
    emit(ctx, comparison_json(comparison), lambda: comparison_view(comparison))
    if comparison.verdict.exit:
        raise typer.Exit(int(comparison.verdict.exit))


def sides(files: list[Path]) -> tuple[list[Path], list[Path]]:
    """Tells A from B: two files are one each; more are grouped by their labels without number, the first group being A.

    Raises:
        UsageError: a single file, or labels that do not make two groups.
    """
    from dsv41ctl.ab import read_capture
    from dsv41ctl.errors import UsageError

    hint = "dsv41ctl ab compare A1 A2 --b B1 --b B2"
    if len(files) == 2:
        return files[:1], files[1:]
    if len(files) < 2:
        raise UsageError("one file compares with nothing", hint="dsv41ctl ab compare A1.jsonl B1.jsonl")
    groups: dict[str, list[Path]] = {}
    for path in files:
        groups.setdefault(re.sub(r"[-_ ]?\d+$", "", read_capture(path).header.label), []).append(path)
    if len(groups) != 2:
        raise UsageError(f"labels make {len(groups)} groups ({', '.join(groups)}), not A and B", hint=hint)
    first, second = groups.values()
    return first, second


def serve_url(cluster: "Cluster | None", url: str | None) -> str:
    """The serve to talk to.

    Raises:
        UsageError: none was named.
    """
    from dsv41ctl.errors import UsageError

    if url:
        return url
    if cluster is None:
        raise UsageError("no serve named", hint="--url http://HOST:PORT, or --cluster FILE")
    return cluster.serve.url


def api_key(variable: str | None) -> str | None:
    """The API key from the environment: never from the command line, where others could read it.

    Raises:
        UsageError: the variable is not set.
    """
    import os

    from dsv41ctl.errors import UsageError

    if variable is None:
        return None
    value = os.environ.get(variable)
    if not value:
        raise UsageError(f"variable {variable} is not set", hint=f"export {variable}=...")
    return value


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Numbers separated by commas.

    Raises:
        UsageError: something else is among them.
    """
    from dsv41ctl.errors import UsageError

    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not part.isdecimal() or int(part) < 1:
            raise UsageError(f"{option}: {part!r} is not a number above 0", hint=f"{option} 64,8192")
    return tuple(int(part) for part in parts)
