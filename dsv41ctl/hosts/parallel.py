"""Work on several hosts at once: all finish, errors are gathered, Ctrl-C ends what runs."""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from dsv41ctl.errors import Dsv41Error, HostError, MixedState
from dsv41ctl.hosts.protocol import Host

__all__ = ["gather", "interrupted", "parallel", "settle"]

T = TypeVar("T")

# Set while an interrupt is carried to the threads; hosts look at it while they wait.
interrupted = threading.Event()


def gather(hosts: Iterable[Host], fn: Callable[[Host], T]) -> dict[str, T | Exception]:
    """Calls `fn` for every host, in parallel; an exception is a result.

    Raises:
        KeyboardInterrupt: after what was running on the hosts has been ended.
    """
    targets = list(hosts)
    results: dict[str, T | Exception] = {}
    if not targets:
        return results
    # The pool's threads are joined here: nothing that we started outlives the call.
    with ThreadPoolExecutor(max_workers=len(targets), thread_name_prefix="host") as pool:
        futures = {host.name: pool.submit(fn, host) for host in targets}
        try:
            wait(futures.values())
        except KeyboardInterrupt:
            interrupted.set()
            try:
                wait(futures.values())
            finally:
                interrupted.clear()
            raise
    for name, future in futures.items():
        error = future.exception()
        if error is None:
            results[name] = future.result()
        elif isinstance(error, Exception):
            results[name] = error
        else:
            raise error
    return results


def parallel(hosts: Iterable[Host], fn: Callable[[Host], T]) -> dict[str, T]:
    """Calls `fn` for every host, in parallel, and waits for all.

    Raises:
        Exception: the one that came, when one host failed.
        MixedState: several hosts failed, others did not.
        HostError: several hosts failed, no other was there.
    """
    return settle(gather(hosts, fn))


def settle(gathered: Mapping[str, T | Exception]) -> dict[str, T]:
    """The results of `gather`, or its errors as one; see `parallel`."""
    results: dict[str, T] = {}
    errors: dict[str, Exception] = {}
    for name, result in gathered.items():
        if isinstance(result, Exception):
            errors[name] = result
        else:
            results[name] = result
    if not errors:
        return results
    first = next(iter(errors.values()))
    unexpected = next((error for error in errors.values() if not isinstance(error, Dsv41Error)), None)
    if unexpected is not None:
        raise unexpected
    if len(errors) == 1:
        raise first
    text = "; ".join(f"{name}: {_message(error)}" for name, error in errors.items())
    hint = next((error.hint for error in errors.values() if isinstance(error, Dsv41Error) and error.hint), None)
    if results:
        raise MixedState(f"{len(errors)} of {len(errors) + len(results)} hosts failed: {text}", hint=hint)
    raise HostError(f"{len(errors)} hosts failed: {text}", hint=hint)


def _message(error: Exception) -> str:
    return error.message if isinstance(error, Dsv41Error) else str(error)
