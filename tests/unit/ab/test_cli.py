"""The verbs against a fake serve on a real socket."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner

from dsv41ctl.ab.benchrun import write_bench
from dsv41ctl.ab.capturefile import Writer
from dsv41ctl.cli import ab as ab_cli
from dsv41ctl.cli import bench as bench_cli
from dsv41ctl.cli.context import Options
from dsv41ctl.errors import Dsv41Error, exit_code

from .fake import FakeServe
from .make import capture, noisy, record
from .test_bench import made


class Result:
    """What a call gave: its exit code as the entry point would set it, stdout, and all words of errors."""

    def __init__(self, code: int, out: str, words: str) -> None:
        self.code, self.out, self.words = code, out, words


def call(*argv: str, **options: Any) -> Result:
    app = typer.Typer()
    app.add_typer(ab_cli.app, name="ab")
    app.add_typer(bench_cli.app, name="bench")
    found = CliRunner().invoke(app, list(argv), obj=Options(**options))
    error = found.exception
    if isinstance(error, Dsv41Error):
        return Result(exit_code(error), found.stdout, str(error))
    if error is not None and not isinstance(error, SystemExit):
        raise error
    return Result(found.exit_code, found.stdout, found.stderr)


def on_socket(fake: FakeServe) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = fake.handle(httpx.Request(self.command, f"http://x{self.path}", content=body))
            data = b"".join(answer.stream) if answer.headers.get("content-length") is None else answer.content  # type: ignore[arg-type,union-attr]
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture
def fake() -> FakeServe:
    return FakeServe()


@pytest.fixture
def url(fake: FakeServe) -> Iterator[str]:
    yield from on_socket(fake)


def save(path: Path, label: str, seed: int | None = None, **more: Any) -> str:
    delta = noisy(seed, 0.01) if seed is not None else lambda _: 0.0
    made_here = capture(label, record(size=300, steps=80, delta=delta, **more))
    with Writer(path / f"{label}.jsonl", made_here.header) as writer:
        for one in made_here.prompts:
            writer.add(one)
        writer.finish(1, 0, 1.0)
    return str(path / f"{label}.jsonl")


SMALL = ("--sizes", "12,40", "--max-tokens", "8")


def test_the_seeds_way_from_run_to_compare(tmp_path: Path, url: str) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text("".join(json.dumps({"text": f"opinion {n} " * 30}) + "\n" for n in range(4)))
    files = [str(tmp_path / f"ab_{label}.jsonl") for label in ("A1", "B1")]
    for label, file in zip(("A1", "B1"), files, strict=True):
        done = call("ab", "run", "--url", url, "--label", label, "--out", file, "--data", str(data), *SMALL)
        assert done.code == 0, done.words
        assert f"{label}, 2 prompts, 16 generated tokens" in done.out
        assert f"{label}: prompt 12: 12 tokens, 8 generated" in done.words
    done = call("ab", "compare", *files)
    assert done.code == 0
    assert done.out.startswith("IDENTICAL\n")


def test_json_alone_on_stdout(tmp_path: Path, url: str) -> None:
    done = call("ab", "run", "--url", url, "--label", "A1", "--out", str(tmp_path / "a.jsonl.gz"), *SMALL, json=True)
    document = json.loads(done.out)
    assert (done.code, document["schema"], document["clean"], document["prompts"]) == (0, 1, True, 2)


def test_a_marked_capture_is_kept_and_exits_5(tmp_path: Path, fake: FakeServe, url: str) -> None:
    fake.hits_per_request = 8
    out = tmp_path / "a.jsonl"
    done = call("ab", "run", "--url", url, "--label", "A1", "--out", str(out), *SMALL)
    assert done.code == 5
    assert out.exists()
    assert "marked: prompt 12: prefix cache hits moved by 8" in done.out
    other = save(tmp_path, "B1")
    assert call("ab", "compare", str(out), other).code == 5


def test_a_dry_run_opens_no_connection(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    argv = ("ab", "run", "--url", "http://127.0.0.1:9", "--label", "A1", "--out", str(out), "--sizes", "7")
    done = call(*argv, dry_run=True)
    assert (done.code, out.exists()) == (0, False)
    assert done.out.startswith(f"would change {out}: capture A1")
    done = call("bench", "run", "--url", "http://127.0.0.1:9", "--label", "A", dry_run=True, json=True)
    assert json.loads(done.out)["would"] == "measure"


def test_the_cluster_file_gives_url_and_sizes(tmp_path: Path) -> None:
    from dsv41ctl.assets import configs

    done = call(
        "ab", "run", "--label", "A1", "--out", str(tmp_path / "a"), dry_run=True, json=True,
        cluster=configs() / "lab.toml",
    )  # fmt: skip
    document = json.loads(done.out)
    assert (document["url"], document["sizes"]) == ("http://127.0.0.1:18001", [32, 1024, 4096])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--sizes", "a,2"), "--sizes: 'a' is not a number above 0"),
        (("--sizes", "0"), "not a number above 0"),
        (("--url", "nonsense"), "is not http://HOST:PORT"),
        (("--api-key-env", "DSV41_NOT_SET_ANYWHERE"), "variable DSV41_NOT_SET_ANYWHERE is not set"),
        (("--data", "/nowhere.jsonl"), "No such file"),
    ],
)
def test_bad_arguments_exit_2(tmp_path: Path, argv: tuple[str, ...], words: str) -> None:
    done = call("ab", "run", "--url", "http://127.0.0.1:9", "--label", "A", "--out", str(tmp_path / "a"), *argv)
    assert done.code == 2
    assert words in done.words


def test_no_serve_named_exits_2(tmp_path: Path) -> None:
    done = call("ab", "run", "--label", "A", "--out", str(tmp_path / "a"))
    assert (done.code, "--url" in done.words) == (2, True)


def test_a_serve_that_is_not_there_exits_1(tmp_path: Path) -> None:
    argv = ("--url", "http://127.0.0.1:9", "--label", "A", "--out", str(tmp_path / "a"), "--attempts", "1")
    done = call("ab", "run", *argv)
    assert done.code == 1
    assert "http://127.0.0.1:9/v1/models: no connection after 1 attempt" in done.words


def test_compare_exit_codes(tmp_path: Path) -> None:
    a1, a2, b1 = save(tmp_path, "A1", 1), save(tmp_path, "A2", 2), save(tmp_path, "B1", 3)
    same, also = save(tmp_path, "A8"), save(tmp_path, "A9")
    flipped = save(tmp_path, "B9", flip=3)
    assert call("ab", "compare", a1, b1).code == 5
    assert call("ab", "compare", a1, b1, "--floor", a1, a2).code == 0
    assert call("ab", "compare", a1, a2, b1).code == 0
    assert call("ab", "compare", a1, a2, "--b", b1).code == 0
    assert call("ab", "compare", same, also).code == 0
    assert call("ab", "compare", same, flipped, "--floor", same, also).code == 3
    assert call("ab", "compare", a1, a1).code == 2
    assert call("ab", "compare", a1).code == 2
    assert call("ab", "compare", a1, a2, same).code == 2
    (tmp_path / "A1.jsonl").write_bytes((tmp_path / "A1.jsonl").read_bytes()[:-9])
    done = call("ab", "compare", a1, b1)
    assert (done.code, done.words.startswith(f"{a1}: cut off")) == (5, True)


def test_compare_writes_its_reports(tmp_path: Path) -> None:
    a1, b1 = save(tmp_path, "A1"), save(tmp_path, "B1")
    html, report = tmp_path / "r.html", tmp_path / "r.json"
    done = call("ab", "compare", a1, b1, "--html", str(html), "--report-json", str(report), json=True)
    assert json.loads(done.out) == json.loads(report.read_text(encoding="utf-8"))
    assert html.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_bench_run_and_compare(tmp_path: Path, fake: FakeServe, url: str) -> None:
    small = ("--prompt-tokens", "20", "--max-tokens", "4", "--concurrency", "2", "--requests", "3")
    files = [str(tmp_path / f"{label}.json") for label in "AB"]
    for label, file in zip("AB", files, strict=True):
        done = call("bench", "run", "--url", url, "--label", label, "--out", file, *small)
        assert done.code == 0, done.words
        assert "decode/s" in done.out
    assert call("bench", "run", "--url", url, "--label", "A", "--out", files[0], *small).code == 2
    done = call("bench", "compare", *files, json=True)
    assert (done.code, json.loads(done.out)["verdict"]) == (0, "measured")
    fake.fallbacks = 1
    mixed = str(tmp_path / "mixed.json")
    assert call("bench", "run", "--url", url, "--label", "B", "--out", mixed, *small).code == 4
    done = call("bench", "compare", files[0], mixed)
    assert (done.code, "B is mixed" in done.out) == (5, True)
    fake.source = None
    assert call("bench", "run", "--url", url, "--label", "B", *small).code == 5


def test_bench_compare_writes_its_document(tmp_path: Path) -> None:
    for label in "AB":
        write_bench(made(label, [1.0, 2.0, 3.0]), tmp_path / f"{label}.json")
    out = tmp_path / "c.json"
    argv = (str(tmp_path / "A.json"), str(tmp_path / "B.json"), "--out", str(out))
    assert call("bench", "compare", *argv).code == 0
    assert json.loads(out.read_text())["kind"] == "bench-comparison"
