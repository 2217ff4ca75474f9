"""Runs steps: hosts in parallel, one after another on each; undone in reverse when anything fails."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dsv41ctl.apply.outcome import StepResult
from dsv41ctl.apply.session import Session
from dsv41ctl.errors import Dsv41Error, MixedState
from dsv41ctl.hosts import Host, gather, settle
from dsv41ctl.plan import (
    Nothing,
    PutFile,
    RemoveFile,
    RemoveTree,
    RestoreFile,
    RunCommand,
    StartServe,
    Step,
    StopServe,
    Undo,
    Word,
    render_action,
)

__all__ = ["Transaction", "plain", "transaction"]


@dataclass(frozen=True)
class _Done:
    """A step that was begun, with what undoing it takes."""

    host: Host
    step: Step
    undo: Undo
    previous: bytes | None


def plain(step: Step, *, word: Word | None = None, seconds: float = 0.0, detail: str | None = None) -> StepResult:
    """A step as a result."""
    return StepResult(
        host=step.host,
        title=step.title,
        word=word or step.state,
        seconds=seconds,
        detail=step.detail if detail is None else detail,
        command=step.command,
        argv=tuple(step.argv) if step.argv else None,
    )


class Transaction:
    """Steps that stand or fall together.

    Args:
        session: hosts, runtime and journal.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._done: list[_Done] = []
        self.results: list[StepResult] = []

    def apply(self, steps: Iterable[Step]) -> list[StepResult]:
        """Runs steps, all hosts at once, each host's in their order. A dry run reports them only.

        Raises:
            Dsv41Error: a step failed; steps already done are left to `undo`.
        """
        by_host: dict[str, list[Step]] = {}
        for step in steps:
            by_host.setdefault(step.host, []).append(step)
        hosts = [self._session.hosts[name] for name in by_host]
        gathered = gather(hosts, lambda host: [self._one(host, step) for step in by_host[host.name]])
        results = [result for found in settle(gathered).values() for result in found]
        self.results += results
        return results

    def add(self, result: StepResult) -> None:
        """Reports a step that was done elsewhere."""
        self.results.append(result)
        self._session.report(result)

    def _one(self, host: Host, step: Step) -> StepResult:
        if self._session.dry_run or step.state is Word.UNCHANGED:
            result = plain(step)
            self._session.report(result)
            return result
        begun = time.monotonic()
        try:
            detail = self._perform(host, step)
        except BaseException as error:
            text = str(error) or type(error).__name__
            self._session.journal.step(plain(step, seconds=time.monotonic() - begun), error=text)
            raise
        result = plain(step, word=Word.CHANGED, seconds=time.monotonic() - begun, detail=detail or step.detail)
        self._session.report(result)
        return result

    def _perform(self, host: Host, step: Step) -> str:
        if step.undo is not None:
            previous = host.get(step.undo.path) if isinstance(step.undo, RestoreFile) else None
            # Before the change: a step that fails half way is undone too.
            self._done.append(_Done(host, step, step.undo, previous))
        session = self._session
        match step.action:
            case PutFile(path=path, data=data, mode=mode):
                host.put(data, path, mode)
            case RemoveFile(path=path):
                host.remove_file(path)
            case RemoveTree(path=path, under=under):
                host.remove_tree(path, under=under)
            case RunCommand(command=command, timeout=timeout):
                host.run(command, timeout=timeout, on_line=lambda text: session.line(host.name, text))
            case StartServe(node=name, arm=arm):
                state = session.runtime.start(host, session.node(name), arm)
                return f"start {state.start_id}"
            case StopServe(node=name):
                session.runtime.stop(host, session.node(name))
            case Nothing():
                pass
        return ""

    def undo(self) -> list[str]:
        """Takes back, last first, whatever was begun. Returns what could not be taken back."""
        left: list[str] = []
        while self._done:
            done = self._done.pop()
            begun = time.monotonic()
            title = f"undo {done.step.title}"
            try:
                self._take_back(done)
            except Dsv41Error as error:
                left.append(f"{done.host.name}: {done.step.title}")
                failed = StepResult(done.host.name, title, Word.WOULD, time.monotonic() - begun)
                self._session.journal.step(failed, error=str(error), undo=True)
                continue
            shown = None if isinstance(done.undo, RestoreFile) else render_action(done.undo)
            result = StepResult(done.host.name, title, Word.CHANGED, time.monotonic() - begun, command=shown)
            self._session.report(result, undo=True)
        return left

    def _take_back(self, done: _Done) -> None:
        match done.undo:
            case RestoreFile(path=path):
                if done.previous is not None:
                    done.host.put(done.previous, path)
            case RemoveFile(path=path):
                done.host.remove_file(path)
            case RunCommand(command=command, timeout=timeout):
                done.host.run(command, timeout=timeout)
            case StopServe(node=name):
                self._session.runtime.stop(done.host, self._session.node(name))


@contextmanager
def transaction(session: Session, *, cleanup: Callable[[], None] | None = None) -> Iterator[Transaction]:
    """Steps inside are undone when the block fails, or is interrupted.

    Args:
        session: hosts, runtime and journal.
        cleanup: called after the steps were undone.

    Raises:
        MixedState: undoing failed too; names what is left.
    """
    running = Transaction(session)
    try:
        yield running
    except BaseException as error:
        left = running.undo()
        if cleanup is not None:
            cleanup()
        if left and isinstance(error, Dsv41Error):
            raise MixedState(f"{error}; and could not be undone: {', '.join(left)}", hint="dsv41ctl status") from error
        raise
