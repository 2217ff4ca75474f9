"""One serve over HTTP: time limits, counted retries, and errors of one line that name the URL."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from dsv41ctl.ab.answers import ModelsAnswer, StreamChunk, TokenizeAnswer, VersionAnswer
from dsv41ctl.errors import Dsv41Error, UsageError
from dsv41ctl.jsontypes import Json

__all__ = ["Answer", "Body", "Serve", "ServeError", "ServeRefused", "check_url"]

Body = Mapping[str, Json]
_Answer = TypeVar("_Answer", bound=BaseModel)

_CONNECT_S = 10.0
_BACKOFF_S = 0.5
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})


class ServeError(Dsv41Error):
    """A serve could not be reached, or its answer could not be used."""


class ServeRefused(ServeError):
    """The serve said no to a request (4xx).

    Args:
        status: the HTTP status.
        reason: the serve's own words.
    """

    def __init__(self, url: str, status: int, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"{url}: refused with {status}: {reason}", hint=hint)
        self.status = status
        self.reason = reason


@dataclass(frozen=True)
class Answer:
    """A 200 answer, and how many requests it took."""

    content: bytes
    attempts: int
    seconds: float
    url: str

    def parse(self, model: type[_Answer]) -> _Answer:
        """The body as a model.

        Raises:
            ServeError: it is none.
        """
        return _parse(model, self.content, self.url)


def check_url(url: str) -> str:
    """The base URL without trailing slash and without `/v1`.

    Raises:
        UsageError: not http(s)://HOST, or it carries a password, which would end up in files.
    """
    hint = "--url http://HOST:PORT"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise UsageError(f"URL {url!r}: {error}", hint=hint) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"URL {url!r} is not http://HOST:PORT", hint=hint)
    if parts.username or parts.password:
        raise UsageError("the URL carries a user name or password", hint="--api-key-env NAME")
    if parts.query or parts.fragment:
        raise UsageError(f"URL {url!r} has a query or fragment", hint=hint)
    return url.rstrip("/").removesuffix("/v1")


class Serve:
    """A client of one serve. Safe to use from several threads.

    Args:
        url: base URL.
        timeout_s: how long one request may stay silent, and a stream may last.
        attempts: requests per call, the first included.
        transport: for tests.
        sleep: for tests.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 600.0,
        attempts: int = 3,
        api_key: str | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = check_url(url)
        self._timeout_s = timeout_s
        self._attempts = max(1, attempts)
        self._sleep = sleep
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # A proxy of the operator's shell must not stand between us and a host of the cluster.
        self._http = httpx.Client(
            base_url=self.url,
            timeout=httpx.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s)),
            headers=headers,
            transport=transport,
            trust_env=False,
            limits=httpx.Limits(max_connections=None),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections."""
        self._http.close()

    def post(self, path: str, body: Callable[[], Body]) -> Answer:
        """Posts JSON; `body` is asked anew for each attempt, so that a retry has a salt of its own.

        Raises:
            ServeRefused: 4xx; never retried.
            ServeError: unreachable, timed out or 5xx, each attempt.
        """
        return self._send("POST", path, body)

    def get(self, path: str) -> Answer | None:
        """Gets a page; None where the serve has none (404, 405, 501).

        Raises:
            ServeError: as with `post`.
        """
        try:
            return self._send("GET", path, None)
        except ServeRefused as error:
            if error.status in (404, 405, 501):
                return None
            raise

    def models(self) -> ModelsAnswer:
        """/v1/models.

        Raises:
            ServeError: there is none.
        """
        answer = self.get("/v1/models")
        if answer is None:
            raise ServeError(f"{self.url}: no /v1/models; not an OpenAI-compatible serve", hint="check --url")
        return answer.parse(ModelsAnswer)

    def version(self) -> str | None:
        """/version, or None."""
        answer = self.get("/version")
        try:
            return answer.parse(VersionAnswer).version if answer else None
        except ServeError:
            return None

    def tokenize(self, body: Body) -> TokenizeAnswer | None:
        """/tokenize, or None where the serve has none."""
        try:
            return self.post("/tokenize", lambda: body).parse(TokenizeAnswer)
        except ServeRefused as error:
            if error.status in (404, 405, 501):
                return None
            raise

    def metrics(self) -> str | None:
        """The text of /metrics, or None where the serve has none."""
        answer = self.get("/metrics")
        return answer.content.decode("utf-8", errors="replace") if answer else None

    @contextmanager
    def stream(self, path: str, body: Body) -> Iterator[Iterator[StreamChunk]]:
        """Streams one request; never retried, since a part of it has been measured.

        Raises:
            ServeError: unreachable, refused, cut off before `[DONE]`, or longer than the time limit.
        """
        url = f"{self.url}{path}"
        try:
            with self._http.stream("POST", path, json=dict(body)) as response:
                if response.status_code != 200:
                    response.read()
                    raise self._status_error(url, response)
                yield self._chunks(url, response)
        except httpx.HTTPError as error:
            raise self._transport_error(url, error, 1) from error

    def _chunks(self, url: str, response: httpx.Response) -> Iterator[StreamChunk]:
        deadline = time.monotonic() + self._timeout_s
        for line in response.iter_lines():
            if time.monotonic() > deadline:
                raise ServeError(f"{url}: stream longer than {self._timeout_s:g} s", hint="--timeout with more seconds")
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                return
            chunk = _parse(StreamChunk, data.encode(), url)
            if chunk.error is not None:
                raise ServeError(f"{url}: error in the stream: {chunk.error}", hint="look at the serve's log")
            yield chunk
        raise ServeError(f"{url}: stream cut off before [DONE]", hint="look at the serve's log")

    def _send(self, method: str, path: str, body: Callable[[], Body] | None) -> Answer:
        url = f"{self.url}{path}"
        attempt = 0
        while True:
            attempt += 1
            begun = time.monotonic()
            failure: ServeError
            try:
                response = self._http.request(method, path, json=dict(body()) if body else None)
            except httpx.HTTPError as error:
                failure = self._transport_error(url, error, attempt)
                failure.__cause__ = error
            else:
                if response.status_code == 200:
                    return Answer(response.content, attempt, time.monotonic() - begun, url)
                failure = self._status_error(url, response, attempt)
                if response.status_code not in _RETRIED:
                    raise failure
            if attempt >= self._attempts:
                raise failure
            self._sleep(_BACKOFF_S * 2 ** (attempt - 1))

    def _status_error(self, url: str, response: httpx.Response, attempt: int = 1) -> ServeError:
        reason = _reason(response)
        if 400 <= response.status_code < 500 and response.status_code not in _RETRIED:
            hint = {401: "--api-key-env NAME", 403: "--api-key-env NAME"}.get(response.status_code)
            return ServeRefused(url, response.status_code, reason, hint=hint)
        return ServeError(
            f"{url}: status {response.status_code} after {_times(attempt)}: {reason}",
            hint="look at the serve's log",
        )

    def _transport_error(self, url: str, error: httpx.HTTPError, attempt: int) -> ServeError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return ServeError(
                f"{url}: no connection after {_times(attempt)}: {error}", hint=f"curl -sS {self.url}/health"
            )
        if isinstance(error, httpx.TimeoutException):
            return ServeError(
                f"{url}: no answer within {self._timeout_s:g} s, {_times(attempt)}",
                hint="--timeout with more seconds, or look at the serve's log",
            )
        return ServeError(f"{url}: answer cut off, {_times(attempt)}: {error}", hint="look at the serve's log")


def _times(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


def _parse(model: type[_Answer], content: bytes, url: str) -> _Answer:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the answer"
        raise ServeError(
            f"{url}: answer not understood: {where}: {first['msg']}", hint="check --url and the serve's version"
        ) from error


def _reason(response: httpx.Response) -> str:
    """The serve's own words on one line, from any of the usual error shapes."""
    text = response.text
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if isinstance(data, dict):
        inner = data.get("error", data)
        text = str((inner.get("message") or inner.get("detail") or inner) if isinstance(inner, dict) else inner)
    line = " ".join(text.split())
    return line[:300] if line else "no reason given"
