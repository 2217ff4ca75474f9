"""Two ranks as processes: determinism, noise, ends, and what one wrong byte does."""

import re
import shutil
import signal
import threading
from pathlib import Path

import httpx
import pytest

from tests.lab.conftest import REPO, TEXT, Serve, StartServe, listening, wait_until


def test_startup_line_and_loopback(serve: Serve) -> None:
    for rank in (0, 1):
        assert re.search(
            rf"lab_engine: rank {rank}/2 engram module \S+/lab_engine/engram\.py configuration A tables layer 1",
            serve.log(rank),
        )
    own = [address for process in serve.ranks for address in listening(process.pid)]
    assert serve.url.removeprefix("http://") in own
    assert all(address.startswith("127.0.0.1:") for address in own), own


def test_repeats_are_identical(serve: Serve) -> None:
    first = serve.exact()
    serve.complete("something else in between")
    assert serve.exact(cache_salt="another") == first


def test_a_restart_and_other_chunks_are_identical(serve: Serve, model: Path, start_serve: StartServe) -> None:
    wanted = serve.exact()
    other = start_serve(model, "--max-batched-tokens", "97")
    assert other.exact() == wanted


@pytest.mark.parametrize("tp", [1, 3])
def test_other_rank_counts_are_identical(serve: Serve, model: Path, start_serve: StartServe, tp: int) -> None:
    assert start_serve(model, tp=tp).exact() == serve.exact()


def test_noise_above(serve: Serve, model: Path, start_serve: StartServe) -> None:
    noisy = start_serve(model, "--noise-above", "256")
    short = {"prompt": TEXT[:150], "max_tokens": 20}
    assert noisy.exact(**short) == serve.exact(**short)
    first, second = noisy.exact(), noisy.exact()
    assert first != second
    # Position 256 is the first whose context is longer; its logits judge the token after it.
    assert first["prompt_logprobs"][:257] == second["prompt_logprobs"][:257]
    assert first["prompt_logprobs"][257:] != second["prompt_logprobs"][257:]


@pytest.mark.parametrize(("layer", "file"), [(1, "model-00002-of-00003"), (14, "model-00003-of-00003")])
def test_one_wrong_byte_moves_logprobs(
    serve: Serve, model: Path, tmp_path: Path, start_serve: StartServe, layer: int, file: str
) -> None:
    import numpy as np
    from lab_engine import engram
    from lab_engine.shards import find_plane, read_config

    prompt = "a wrong row moves what follows"
    tokens = np.array([256, *prompt.encode()])
    geometry = engram.EngramGeometry.from_config(read_config(model))
    row = int(engram.NgramHash(geometry).ids(tokens, tokens[:0])[10, geometry.layer_ids.index(layer), 20])
    copy = shutil.copytree(model, tmp_path / "copy")
    plane = find_plane(copy, f"layers.{layer}.engram.embed.weight")
    assert plane.path.name == f"{file}.safetensors"
    with plane.path.open("r+b") as shard:
        shard.seek(plane.offset + row * 256 + 77)
        byte = shard.read(1)[0]
        shard.seek(plane.offset + row * 256 + 77)
        shard.write(bytes([byte ^ 0x01]))
    right = serve.exact(prompt)["prompt_logprobs"]
    wrong = start_serve(copy).exact(prompt)["prompt_logprobs"]
    assert right[:11] == wrong[:11]
    assert all(ours != theirs for ours, theirs in zip(right[11:], wrong[11:], strict=True))


def test_sigterm_ends_both_ranks(model: Path, start_serve: StartServe) -> None:
    serve = start_serve(model)
    statuses, seconds = serve.terminate()
    assert statuses == [0, 0], serve.log(0) + serve.log(1)
    assert seconds < 3


def test_sigterm_amid_a_request(model: Path, start_serve: StartServe) -> None:
    serve = start_serve(model)
    outcome: list[object] = []

    def ask() -> None:
        try:
            outcome.append(serve.post("/v1/completions", prompt=TEXT, max_tokens=2000, ignore_eos=True).status_code)
        except httpx.TransportError as error:
            outcome.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until("the request runs", lambda: serve.metric("vllm:num_requests_running") == 1)
    statuses, seconds = serve.terminate()
    asking.join(10)
    assert statuses == [0, 0], serve.log(0) + serve.log(1)
    assert seconds < 3
    assert outcome != [200]


def test_sigterm_before_the_others_came(model: Path, start_serve: StartServe) -> None:
    serve = start_serve(model, wait=False, only=(0,))
    wait_until("rank 0 waits for the other", lambda: "meets 2 ranks at 127.0.0.1:" in serve.log(0))
    with pytest.raises(httpx.TransportError):
        serve.http.get("/health")
    statuses, seconds = serve.terminate()
    assert statuses == [0]
    assert seconds < 3


def test_ranks_that_do_not_come_are_an_error(model: Path, start_serve: StartServe) -> None:
    serve = start_serve(model, "--join-timeout-s", "1", wait=False, only=(0,))
    assert serve.ranks[0].wait(15) == 1
    assert "the 2 ranks did not meet" in serve.log(0)


@pytest.mark.parametrize("dies", [0, 1])
def test_a_lost_peer_ends_the_rest(model: Path, start_serve: StartServe, dies: int) -> None:
    serve = start_serve(model)
    serve.ranks[dies].send_signal(signal.SIGKILL)
    other = 1 - dies
    assert serve.ranks[other].wait(10) == 1
    assert f"lab_engine: rank {other}/2: lost a peer: " in serve.log(other)


def test_a_port_in_use_is_named(serve: Serve, model: Path, start_serve: StartServe) -> None:
    port = serve.url.rsplit(":", 1)[1]
    second = start_serve(model, "--port", port, wait=False, only=(0,))
    assert second.ranks[0].wait(15) == 1
    assert f"cannot bind 127.0.0.1:{port}: Address already in use" in second.log(0)


def test_a_missing_checkpoint_is_named(tmp_path: Path, start_serve: StartServe) -> None:
    serve = start_serve(tmp_path / "nowhere", tp=1, wait=False)
    assert serve.ranks[0].wait(15) == 1
    assert "nowhere/config.json" in serve.log(0)


def test_a_client_that_leaves_stops_its_request(model: Path, start_serve: StartServe) -> None:
    serve = start_serve(model)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{serve.url}/v1/completions", json={"prompt": "x", "max_tokens": 5000, "ignore_eos": True}, timeout=0.5
        )
    wait_until("the request ends", lambda: serve.metric("vllm:num_requests_running") == 0, 10)
    assert serve.metric('vllm:request_success_total{finished_reason="abort"') == 1
    serve.complete("still serving")


def test_requests_wait_in_line(serve: Serve) -> None:
    with httpx.Client(base_url=serve.url, timeout=30) as client, httpx.Client(base_url=serve.url, timeout=30) as other:
        body = {"prompt": "line", "max_tokens": 60, "ignore_eos": True}
        threads = [
            threading.Thread(target=lambda http=http: http.post("/v1/completions", json=body))
            for http in (client, other)
        ]
        for thread in threads:
            thread.start()
        wait_until("one runs and one waits", lambda: serve.metric("vllm:num_requests_waiting") == 1, 10)
        assert serve.metric("vllm:num_requests_running") == 1
        for thread in threads:
            thread.join(30)
    assert serve.metric("vllm:num_requests_waiting") == 0


def test_the_image_stands_alone() -> None:
    image = REPO / "dsv41ctl/lab/image"
    allowed = {"lab_engine", "torch", "numpy", "starlette", "uvicorn"}
    import ast
    import sys

    for path in image.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.split(".")[0]
                assert top in allowed or top in sys.stdlib_module_names, f"{path}: {name}"
