"""The HTTP API of rank 0."""

import asyncio
import json
import queue
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from lab_engine import __version__
from lab_engine.api import ApiError, Call, Limits, parse_chat, parse_completion, parse_tokenize
from lab_engine.engine import Engine, Finished, Job, PromptDone, Step
from lab_engine.metrics import Metrics
from lab_engine.shapes import (
    Answer,
    Header,
    chat_answer,
    chat_chunk,
    completion_answer,
    completion_chunk,
    usage,
)
from lab_engine.tokenizer import decode_token

__all__ = ["make_app"]

_POLL_S = 0.002


def make_app(engine: Engine, metrics: Metrics, limits: Limits, fingerprint: str, started: int) -> Starlette:
    """The API over an engine.

    Args:
        engine: where jobs go.
        metrics: what /metrics prints.
        limits: what requests may ask.
        fingerprint: identifies model and engine settings in every answer.
        started: when the serve started, seconds since the epoch.
    """

    async def generate(request: Request, *, chat: bool) -> Response:
        body = await _body(request)
        call = parse_chat(body, limits) if chat else parse_completion(body, limits)
        header = Header.new(call, fingerprint)
        if call.echo and call.jobs[0].logprobs is not None:
            for job in call.jobs:
                job.prompt_logprobs = job.logprobs if job.prompt_logprobs is None else job.prompt_logprobs
        for job in call.jobs:
            engine.submit(job)
        if call.stream:
            return StreamingResponse(_stream(header, call), media_type="text/event-stream")
        answers = await _collect(request, call)
        if any(answer.finished is None or answer.finished.reason == "abort" for answer in answers):
            raise ApiError("the request was aborted: the serve is stopping", 500, "InternalServerError")
        return JSONResponse(chat_answer(header, call, answers[0]) if chat else completion_answer(header, call, answers))

    async def completions(request: Request) -> Response:
        return await generate(request, chat=False)

    async def chat_completions(request: Request) -> Response:
        return await generate(request, chat=True)

    async def health(_: Request) -> Response:
        return Response(status_code=200)

    async def version(_: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def models(_: Request) -> Response:
        card = {
            "id": limits.model,
            "object": "model",
            "created": started,
            "owned_by": "lab",
            "root": limits.model,
            "parent": None,
            "max_model_len": limits.max_len,
            "permission": [],
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def tokenize(request: Request) -> Response:
        body = await _body(request)
        tokens = parse_tokenize(body, limits)
        strings = [decode_token(token) for token in tokens] if body.get("return_token_strs") else None
        return JSONResponse(
            {"count": len(tokens), "max_model_len": limits.max_len, "tokens": tokens, "token_strs": strings}
        )

    async def show_metrics(_: Request) -> Response:
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4")

    return Starlette(
        routes=[
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/models", models),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/health", health),
            Route("/ping", health, methods=["GET", "POST"]),
            Route("/version", version),
            Route("/metrics", show_metrics),
        ],
        exception_handlers={ApiError: _refuse, 404: _not_found, 405: _not_found},
    )


async def _refuse(_: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    return JSONResponse(error.body(), status_code=error.status)


async def _not_found(_: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    words = "Not Found" if status == 404 else "Method Not Allowed"
    return JSONResponse(ApiError(words, status, words).body(), status_code=status)


async def _body(request: Request) -> dict[str, object]:
    try:
        body = json.loads(await request.body())
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError("the body is not a JSON object")
    return body


async def _events(job: Job) -> AsyncIterator[PromptDone | Step | Finished]:
    # The engine's thread must never wait for the event loop, so the loop polls.
    while True:
        try:
            event = job.events.get_nowait()
        except queue.Empty:
            await asyncio.sleep(_POLL_S)
            continue
        yield event
        if isinstance(event, Finished):
            return


async def _collect(request: Request, call: Call) -> list[Answer]:
    async def one(job: Job) -> Answer:
        answer = Answer(job)
        async for event in _events(job):
            answer.take(event)
        return answer

    work = asyncio.gather(*(one(job) for job in call.jobs))
    try:
        while not work.done():
            await asyncio.wait([work], timeout=0.25)
            if not work.done() and await request.is_disconnected():
                raise ApiError("the client went away", 499, "ClientDisconnected")
        return work.result()
    except BaseException:
        work.cancel()
        for job in call.jobs:
            job.cancelled.set()
        raise


async def _stream(header: Header, call: Call) -> AsyncIterator[str]:
    answers = [Answer(job) for job in call.jobs]
    try:
        for index, answer in enumerate(answers):
            if call.chat:
                yield _sse(chat_chunk(header, call, answer, None))
            async for event in _events(answer.job):
                answer.take(event)
                if isinstance(event, PromptDone):
                    continue
                yield _sse(
                    chat_chunk(header, call, answer, event)
                    if call.chat
                    else completion_chunk(header, call, index, answer, event)
                )
        if call.include_usage:
            kind = "chat.completion.chunk" if call.chat else "text_completion"
            yield _sse({**header.body(kind), "choices": [], "usage": usage(answers)})
        yield "data: [DONE]\n\n"
    finally:
        # Reached early when the client goes away; harmless at the end.
        for job in call.jobs:
            job.cancelled.set()


def _sse(body: dict[str, object]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"
