"""Finds out what a serve can do. A status of 200 proves little: unknown parameters are often ignored."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from dsv41ctl.ab.client import Serve, ServeError, ServeRefused
from dsv41ctl.ab.wire import Reply, base_body, path_of, read_reply, tokenize_body
from dsv41ctl.errors import UsageError
from dsv41ctl.jsontypes import Json

__all__ = ["Capabilities", "State", "choose_model", "probe"]

_PROBE_TEXT = "The harbour clerk opens the ledger."


class State(Enum):
    """What became of a parameter."""

    SEEN = "its effect was seen"
    ACCEPTED = "accepted, but its effect cannot be seen"
    IGNORED = "accepted, but without effect"
    REFUSED = "refused"


@dataclass(frozen=True)
class Capabilities:
    """A serve, probed.

    Attributes:
        max_model_len: the longest prompt with its answer, or None.
        states: what became of each parameter.
        said: the serve's own words for each refusal.
        logprobs: None when the serve gives none.
    """

    model: str
    version: str | None
    fingerprint: str | None
    max_model_len: int | None
    tokenize: bool
    metrics: bool
    logprobs: bool
    states: dict[str, State]
    said: dict[str, str]

    def can(self, name: str) -> bool:
        """Whether a parameter is worth sending."""
        return self.states.get(name) in (State.SEEN, State.ACCEPTED)

    @property
    def degradations(self) -> tuple[str, ...]:
        """One line for each thing that this serve does not do, and what that costs."""
        lines: list[str] = []
        for name, state in self.states.items():
            if state is State.SEEN or (name == "priority" and state is State.ACCEPTED):
                continue
            words = f" ({self.said[name]})" if name in self.said else ""
            lines.append(f"{name}: {state.value}{words}: {_COST[name]}")
        if not self.logprobs:
            lines.append("logprobs: none in the answer: only tokens can be compared")
        if not self.tokenize:
            lines.append("/tokenize: none: prompt sizes are scaled from a sample")
        if not self.metrics:
            lines.append("/metrics: none: an idle server and a cold prefix cache are unproven")
        if self.fingerprint is None:
            lines.append("system_fingerprint: none: the engine's configuration is not recorded")
        return tuple(lines)


_COST = {
    "return_token_ids": "prompts are matched by their text alone, and no prompt_logprobs can be read",
    "return_tokens_as_token_ids": "alternatives with equal text are lost, so KL sees fewer of them",
    "prompt_logprobs": "no teacher-forced comparison",
    "cache_salt": "a cold prefix cache rests on the hit counter alone",
    "priority": "other requests may run beside this one",
}


def choose_model(serve: Serve, wanted: str | None) -> tuple[str, int | None]:
    """The model's name and length limit.

    Raises:
        UsageError: the wanted one is not served, or there are several and none was named.
    """
    cards = serve.models().data
    names = [card.id for card in cards]
    if not cards:
        raise ServeError(f"{serve.url}/v1/models: no model is served", hint="look at the serve's log")
    if wanted is None:
        # Several cards are LoRA adapters or aliases; guessing among them would compare unlike things.
        if len(cards) > 1:
            raise UsageError(f"{serve.url} serves {', '.join(names)}", hint="--model NAME")
        return cards[0].id, cards[0].max_model_len
    for card in cards:
        if card.id == wanted:
            return card.id, card.max_model_len
    raise UsageError(f"{serve.url} does not serve {wanted}; it serves {', '.join(names)}", hint="--model NAME")


def probe(
    serve: Serve,
    *,
    model: str | None,
    chat: bool,
    logprobs: int,
    prompt_logprobs: int | None,
    priority: int | None,
) -> Capabilities:
    """Asks a serve one small request for each parameter.

    Raises:
        UsageError: the model is not served, or the serve allows fewer logprobs.
        ServeError: it cannot be reached, or refuses even the plainest request.
    """
    name, limit = choose_model(serve, model)
    path = path_of(chat)
    base = base_body(name, _PROBE_TEXT, chat=chat, max_tokens=1, logprobs=logprobs)

    def ask(**more: Json) -> Reply:
        return read_reply(serve.post(path, lambda: {**base, **more}), chat=chat)

    try:
        plain = ask()
    except ServeRefused as error:
        if "logprob" in error.reason:
            raise UsageError(
                f"{serve.url}: {logprobs} logprobs refused: {error.reason}", hint="--logprobs with a smaller number"
            ) from error
        raise
    states: dict[str, State] = {}
    said: dict[str, str] = {}

    def attempt(parameter: str, seen: Callable[[Reply], bool | None], **more: Json) -> None:
        try:
            effect = seen(ask(**more))
        except ServeRefused as error:
            states[parameter], said[parameter] = State.REFUSED, error.reason
            return
        states[parameter] = State.ACCEPTED if effect is None else State.SEEN if effect else State.IGNORED

    attempt(
        "return_token_ids",
        lambda reply: reply.token_ids is not None and reply.prompt_ids is not None,
        return_token_ids=True,
    )
    attempt("return_tokens_as_token_ids", lambda reply: reply.named_ids, return_tokens_as_token_ids=True)
    if prompt_logprobs is not None:
        # Without the prompt's ids its own token cannot be found among the alternatives.
        if states["return_token_ids"] is State.SEEN:
            attempt(
                "prompt_logprobs",
                lambda reply: reply.forced is not None,
                return_token_ids=True,
                prompt_logprobs=prompt_logprobs,
            )
        else:
            states["prompt_logprobs"] = State.IGNORED
            said["prompt_logprobs"] = "needs return_token_ids"
    attempt("cache_salt", lambda _: _knows_salt(serve, path, base), cache_salt="probe")
    if priority is not None:
        # A first-come serve accepts a priority and ignores it.
        attempt("priority", lambda _: None, priority=priority)
    tokenized = serve.tokenize(tokenize_body(name, _PROBE_TEXT, chat=chat))
    return Capabilities(
        model=name,
        version=serve.version(),
        fingerprint=plain.fingerprint,
        max_model_len=limit or (tokenized.max_model_len if tokenized else None),
        tokenize=tokenized is not None,
        metrics=serve.metrics() is not None,
        logprobs=bool(plain.generated.top and plain.generated.top[0]),
        states=states,
        said=said,
    )


def _knows_salt(serve: Serve, path: str, base: dict[str, Json]) -> bool | None:
    """A serve that knows the parameter refuses an empty salt; one that ignores it cannot tell."""
    try:
        serve.post(path, lambda: {**base, "cache_salt": ""})
    except ServeRefused:
        return True
    return None
