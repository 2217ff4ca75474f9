import socket
import threading

import httpx
import pytest

from dsv41ctl.ab.client import Serve, ServeError, ServeRefused, check_url
from dsv41ctl.errors import UsageError, exit_code

from .fake import URL, FakeServe


def serve(handler: object, **more: object) -> Serve:
    return Serve(URL, transport=httpx.MockTransport(handler), sleep=lambda _: None, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "base"),
    [("http://h:1/", "http://h:1"), ("http://h:1/v1", "http://h:1"), ("https://[::1]:8001", "https://[::1]:8001")],
)
def test_urls(url: str, base: str) -> None:
    assert check_url(url) == base


@pytest.mark.parametrize("url", ["h:8001", "ftp://h", "http://", "http://h:port", "http://u:secret@h", "http://h?x=1"])
def test_a_bad_url_is_a_usage_error_without_its_secret(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_url(url)
    assert "secret" not in str(caught.value)


def test_server_errors_are_retried_and_counted() -> None:
    fake = FakeServe(fail=[500, 503])
    answer = fake.client().post("/v1/completions", lambda: {"prompt": "abc", "max_tokens": 3})
    assert answer.attempts == 3
    assert len(fake.requests) == 3


def test_a_retry_has_a_body_of_its_own() -> None:
    fake = FakeServe(fail=[500])
    salts = iter(["first", "second"])
    fake.client().post("/v1/completions", lambda: {"prompt": "abc", "max_tokens": 3, "cache_salt": next(salts)})
    assert [body["cache_salt"] for body in fake.requests] == ["first", "second"]


def test_retries_end() -> None:
    fake = FakeServe(fail=[500] * 9)
    with pytest.raises(
        ServeError, match=rf"^{URL}/v1/completions: status 500 after 3 attempts: engine trouble \(next: "
    ):
        fake.client(attempts=3).post("/v1/completions", lambda: {"prompt": "abc", "max_tokens": 3})
    assert len(fake.requests) == 3


def test_a_refusal_is_not_retried_and_keeps_the_serves_words() -> None:
    fake = FakeServe(refuse={"priority"})
    with pytest.raises(ServeRefused, match="refused with 400: priority is not supported"):
        fake.client().post("/v1/completions", lambda: {"prompt": "abc", "priority": 1})
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"detail": "no"}', ": no"),
        ('{"error": "plain"}', ": plain"),
        ("<h1>\nbad</h1>", "<h1> bad"),
        ("", "no reason"),
    ],
)
def test_every_error_shape_becomes_one_line(body: str, words: str) -> None:
    with pytest.raises(ServeRefused) as caught:
        serve(lambda _: httpx.Response(422, text=body)).get("/x")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_answer_that_is_none() -> None:
    with pytest.raises(ServeError, match="answer not understood"):
        serve(lambda _: httpx.Response(200, text="<html>")).models()
    with pytest.raises(ServeError, match="answer not understood: data: Field required"):
        serve(lambda _: httpx.Response(200, json={})).models()
    with pytest.raises(ServeError, match="not an OpenAI-compatible serve"):
        serve(lambda _: httpx.Response(404)).models()


def test_a_timeout_names_its_limit() -> None:
    def slow(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("slow", request=request)

    with pytest.raises(ServeError, match=r"no answer within 7 s, 2 attempts"):
        serve(slow, timeout_s=7.0, attempts=2).get("/x")


def test_nobody_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    client = Serve(f"http://127.0.0.1:{port}", attempts=2, sleep=lambda _: None)
    with pytest.raises(ServeError, match=rf"127.0.0.1:{port}/v1/models: no connection after 2 attempts") as caught:
        client.models()
    assert f"(next: curl -sS http://127.0.0.1:{port}/health)" in str(caught.value)
    assert exit_code(caught.value) == 1


def test_a_body_that_is_cut_off_is_retried() -> None:
    """Over a real socket: the first answer ends before its Content-Length, the second is whole."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)

    def answer() -> None:
        for whole in (False, True):
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                body = b'{"version": "9"}'
                head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
                peer.sendall(head + (body if whole else body[:5]))

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with Serve(f"http://127.0.0.1:{listener.getsockname()[1]}", sleep=lambda _: None) as client:
            found = client.get("/version")
        assert found is not None
        assert (found.attempts, found.content) == (2, b'{"version": "9"}')
    finally:
        thread.join(10)
        listener.close()


def test_a_stream_that_is_cut_off_is_an_error() -> None:
    fake = FakeServe(cut_stream=True)
    with (
        pytest.raises(ServeError, match=r"stream cut off before \[DONE\]"),
        fake.client().stream("/v1/completions", {"prompt": "abc", "max_tokens": 4, "stream": True}) as chunks,
    ):
        list(chunks)


def test_an_error_inside_a_stream() -> None:
    text = 'data: {"error": {"message": "out of memory"}}\n\ndata: [DONE]\n\n'
    client = serve(lambda _: httpx.Response(200, text=text))
    with pytest.raises(ServeError, match="out of memory"), client.stream("/v1/completions", {}) as chunks:
        list(chunks)


def test_the_key_is_sent_and_never_shown() -> None:
    seen: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization", ""))
        return httpx.Response(401, json={"error": {"message": "wrong key"}})

    with pytest.raises(ServeRefused) as caught:
        serve(handler, api_key="hush").get("/x")
    assert seen == ["Bearer hush"]
    assert "hush" not in str(caught.value)
    assert "--api-key-env" in str(caught.value)
