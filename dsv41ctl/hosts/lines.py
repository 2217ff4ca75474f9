"""Cuts a byte stream into lines as it comes."""

from dsv41ctl.hosts.protocol import OnLine

__all__ = ["LineSplitter"]

_LONGEST = 1 << 16


class LineSplitter:
    """Calls a listener with each whole line; a line that never ends is passed on in parts."""

    def __init__(self, listener: OnLine | None) -> None:
        self._listener = listener
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes."""
        if self._listener is None:
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._listener(line.decode("utf-8", "replace").rstrip("\r"))
        if len(self._rest) > _LONGEST:
            self.finish()

    def finish(self) -> None:
        """Passes on what came after the last newline."""
        if self._listener is not None and self._rest:
            self._listener(self._rest.decode("utf-8", "replace").rstrip("\r"))
        self._rest = b""
