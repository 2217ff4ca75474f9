"""`bench`: measure an arm's speed, and compare two measurements."""

from pathlib import Path
from typing import Annotated

import typer

from dsv41ctl.cli.ab import api_key, numbers, serve_url
from dsv41ctl.cli.context import emit, note, options

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure the speed of A and B.")


@app.callback()
def _group() -> None:
    """Measure the speed of A and B."""


@app.command()
def run(
    ctx: typer.Context,
    label: Annotated[str, typer.Option(help="Name of this run, e.g. A or B.")],
    out: Annotated[Path | None, typer.Option(help="Where to write the measurement (JSON).")] = None,
    url: Annotated[str | None, typer.Option(help="The serve, http://HOST:PORT (default: cluster file).")] = None,
    model: Annotated[str | None, typer.Option(help="Served model name.")] = None,
    prompt_tokens: Annotated[str | None, typer.Option(help="Prompt sizes in tokens, e.g. 64,2048.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=2, help="Generated tokens a request (default 32).")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Requests at once, e.g. 1,4.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Requests of each size and concurrency.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds a request may take.")] = 600.0,
    api_key_env: Annotated[str | None, typer.Option(help="Variable that holds the API key.")] = None,
) -> None:
    """Measure one arm by streaming: exit 4 when fallbacks moved during the run, 5 when that cannot be told."""
    from dataclasses import replace

    from dsv41ctl.ab.bench import BenchSettings, run_bench
    from dsv41ctl.ab.benchrun import write_bench
    from dsv41ctl.ab.render import bench_view
    from dsv41ctl.config.model import Bench
    from dsv41ctl.errors import Exit, UsageError

    given = options(ctx)
    cluster = given.load() if given.cluster is not None else None
    defaults = BenchSettings.from_config(
        cluster.bench if cluster else Bench(),
        url=serve_url(cluster, url),
        label=label,
        model=model or (cluster.serve.model if cluster else None),
        timeout_s=timeout,
        api_key=api_key(api_key_env),
    )
    settings = replace(
        defaults,
        prompt_tokens=numbers(prompt_tokens, "--prompt-tokens") if prompt_tokens else defaults.prompt_tokens,
        max_tokens=max_tokens or defaults.max_tokens,
        concurrency=numbers(concurrency, "--concurrency") if concurrency else defaults.concurrency,
        requests=requests or defaults.requests,
    )
    if out is not None and out.exists() and not given.yes:
        raise UsageError(f"{out} exists", hint="another --out, or --yes to replace it")
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"{out}: no directory {out.parent}", hint=f"mkdir -p {out.parent}")
    if given.dry_run:
        cells = len(settings.prompt_tokens) * len(settings.concurrency)
        text = f"would change {out or 'nothing'}: measure {label} at {settings.url}, {cells} cells"
        emit(ctx, {"schema": 1, "would": "measure", "url": settings.url, "label": label, "cells": cells}, lambda: text)
        return
    measured = run_bench(settings, lambda progress: note(f"{label}: {progress.text}"))
    if out is not None:
        write_bench(measured, out)
    emit(ctx, measured.as_json(), lambda: bench_view(measured))
    if measured.state == "mixed":
        note("dsv41ctl: fallbacks moved: this run measured a mix of A and B (next: dsv41ctl check)")
        raise typer.Exit(int(Exit.MIXED))
    if measured.state == "unproven":
        note("dsv41ctl: nothing shows that no rows fell back during this run (next: dsv41ctl check)")
        raise typer.Exit(int(Exit.INCONCLUSIVE))


@app.command()
def compare(
    ctx: typer.Context,
    a: Annotated[Path, typer.Argument(help="Measurement of A.")],
    b: Annotated[Path, typer.Argument(help="Measurement of B.")],
    resamples: Annotated[int, typer.Option(min=100, help="Resamples of the bootstrap.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 41,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON document here.")] = None,
) -> None:
    """Compare two measurements: medians, their ratio and its 95 % interval; exit 5 when one is mixed or unproven."""
    import json

    from dsv41ctl.ab import compare_bench, read_bench
    from dsv41ctl.ab.files import write_whole
    from dsv41ctl.ab.render import bench_comparison_view
    from dsv41ctl.errors import Exit

    comparison = compare_bench(read_bench(a), read_bench(b), resamples, seed)
    if out is not None and not options(ctx).dry_run:
        write_whole(out, json.dumps(comparison.as_json(), indent=1) + "\n")
    emit(ctx, comparison.as_json(), lambda: bench_comparison_view(comparison))
    if comparison.verdict != "measured":
        raise typer.Exit(int(Exit.INCONCLUSIVE))
