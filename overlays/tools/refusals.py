"""Asks a table server for what it must refuse, over a wire client of its own that shares no code with the native one.

After every refusal the server must go on serving: a good lookup follows and its row is compared with the local shard's.
The handshake goes over TCP to HOST:PORT, whatever the URL's scheme.
"""

import hashlib
import hmac
import os
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAGIC = 0x314C464F
HEADER = struct.Struct("<IHHIIQ")
HELLO = struct.Struct("<HHI32s")
HELLO_ACK = struct.Struct("<HBBI32s")
OPEN = struct.Struct("<IIIIQQ32sIIQ")
OPEN_ACK = struct.Struct("<QIIQ32s")
T_HELLO, T_HELLO_ACK, T_OPEN, T_OPEN_ACK, T_REFUSAL, T_LOOKUP, T_ROWS = range(1, 8)
LAST = 1
WEIGHT_BYTES, SCALE_BYTES = 256, 8
ROW_BYTES = WEIGHT_BYTES + SCALE_BYTES
FORMAT = 1
# Small on purpose: one id more is still a short frame, so that the count is refused and not the length.
MAX_ROWS = 64
TIMEOUT_S = 10.0
# Not ready, too many connections: says nothing about the kind that was tried.
BUSY = (-107, -108)
_URL = re.compile(r"^(?:tcp|rdma)://(?:\[([^\]]+)\]|([^:@/\[\]]+)):(\d+)(?:@(?:\[([^\]]+)\]|([^@\[\]]+)))?$")


class WireError(Exception):
    """The peer went away, or said something that the protocol does not allow here."""


class Refused(Exception):
    """The server refused."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"status {code}: {reason}")
        self.code = code
        self.reason = reason


class Unavailable(Exception):
    """The server cannot be asked at all; nothing is proven either way."""


class Contradiction(Exception):
    """The server holds another table than this node, before anything was provoked."""


@dataclass(frozen=True)
class Target:
    """What a good connection opens, and one row of it as the local shard has it."""

    url: str
    layer: int
    start: int
    end: int
    table_rows: int
    identity: bytes
    row: bytes
    key: bytes = b""


def parse_url(url: str) -> tuple[str, int, str]:
    """Host, port and local address ("" for any) of a URL."""
    match = _URL.match(url)
    if not match or not 1 <= int(match[3]) <= 65535:
        raise ValueError(f"{url!r} is not tcp://HOST:PORT[@LOCAL] or rdma://HOST:PORT@LOCAL")
    return match[1] or match[2], int(match[3]), match[4] or match[5] or ""


class Wire:
    """One connection, frame by frame."""

    def __init__(self, target: Target) -> None:
        host, port, local = parse_url(target.url)
        source = (local, 0) if local else None
        try:
            self.socket = socket.create_connection((host, port), TIMEOUT_S, source_address=source)
        except OSError as error:
            raise Unavailable(f"{target.url}: no connection: {error}") from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.target = target
        self.nonces = b""

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, kind: int, payload: bytes = b"", *, magic: int = MAGIC, seq: int = 0) -> None:
        """Sends one frame."""
        try:
            self.socket.sendall(HEADER.pack(magic, 1, kind, len(payload), 0, seq) + payload)
        except OSError as error:
            raise WireError(f"the connection broke while sending: {error}") from error

    def receive(self, kind: int) -> tuple[int, int, bytes]:
        """Flags, seq and payload of the next frame, which must be of that type."""
        magic, version, found, length, flags, seq = HEADER.unpack(self._exactly(HEADER.size))
        if magic != MAGIC or version != 1 or length > 64 << 20:
            raise WireError(f"garbage from the server: magic {magic:#x}, version {version}, length {length}")
        payload = self._exactly(length)
        if found == T_REFUSAL:
            if len(payload) < 8:
                raise WireError(f"a refusal of {len(payload)} bytes")
            code, size = struct.unpack_from("<iI", payload)
            raise Refused(code, payload[8 : 8 + size].decode("utf-8", "replace"))
        if found != kind:
            raise WireError(f"expected a frame of type {kind}, found {found}")
        return flags, seq, payload

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                got = self.socket.recv(min(1 << 20, size - len(data)))
            except OSError as error:
                raise WireError(f"no answer: {error}") from error
            if not got:
                raise WireError("the server closed the connection without an answer")
            data += got
        return bytes(data)

    def hello(self, low: int = 1, high: int = 1) -> None:
        """Both nonces change hands."""
        ours = os.urandom(32)
        self.send(T_HELLO, HELLO.pack(low, high, 0, ours))
        answer = self.receive(T_HELLO_ACK)[2]
        if len(answer) != HELLO_ACK.size:
            raise WireError(f"a HELLO_ACK of {len(answer)} bytes, expected {HELLO_ACK.size}")
        version, needs_key, _, _, theirs = HELLO_ACK.unpack(answer)
        if version != 1:
            raise WireError(f"the server chose version {version}")
        if needs_key and not self.target.key:
            raise Unavailable("the server wants a key; pass --key-file")
        self.nonces = ours + theirs

    def ask_open(self, **other: Any) -> None:
        """Asks for the target's range, with some fields replaced."""
        good = self.target
        fields: dict[str, Any] = {
            "layer": good.layer,
            "row_bytes": ROW_BYTES,
            "format": FORMAT,
            "transport": 0,
            "start": good.start,
            "end": good.end,
            "identity": good.identity,
            "max_rows": MAX_ROWS,
            "reserved": 0,
            "generation": 1,
        }
        body = OPEN.pack(*(fields | other).values())
        self.send(T_OPEN, body + self._mac(b"open", body))

    def open(self, **other: Any) -> None:
        """Opens, and checks what the server answers."""
        self.ask_open(**other)
        payload = self.receive(T_OPEN_ACK)[2]
        if len(payload) != OPEN_ACK.size + 32:
            raise WireError(f"an OPEN_ACK of {len(payload)} bytes, expected {OPEN_ACK.size + 32}")
        body, mac = payload[: OPEN_ACK.size], payload[OPEN_ACK.size :]
        rows, _, _, _, identity = OPEN_ACK.unpack(body)
        if self.target.key and not hmac.compare_digest(mac, self._mac(b"ack", body)):
            raise WireError("the server does not know the key")
        if identity != self.target.identity or rows != self.target.table_rows:
            raise WireError(f"the server opened another table: {rows} rows, identity {identity.hex()}")

    def _mac(self, word: bytes, body: bytes) -> bytes:
        if not self.target.key:
            return bytes(32)
        return hmac.new(self.target.key, self.nonces + word + body, hashlib.sha256).digest()

    def ask(self, ids: list[int], epoch: int = 1) -> None:
        """Sends a lookup."""
        self.send(T_LOOKUP, struct.pack(f"<II{len(ids)}I", len(ids), 0, *ids), seq=epoch)

    def lookup(self, ids: list[int], epoch: int = 1) -> list[bytes]:
        """The rows of those ids, 264 bytes each."""
        self.ask(ids, epoch)
        rows: list[bytes] = []
        while True:
            flags, seq, payload = self.receive(T_ROWS)
            first, count = struct.unpack_from("<II", payload.ljust(8, b"\0"))
            if seq != epoch or first != len(rows) or len(payload) != 8 + count * ROW_BYTES:
                raise WireError(f"rows of lookup {seq} from {first} on, {count} of them, do not fit")
            scales = 8 + count * WEIGHT_BYTES
            for row in range(count):
                weight = payload[8 + row * WEIGHT_BYTES : 8 + (row + 1) * WEIGHT_BYTES]
                rows.append(weight + payload[scales + row * SCALE_BYTES : scales + (row + 1) * SCALE_BYTES])
            if flags & LAST:
                break
        if len(rows) != len(ids):
            raise WireError(f"{len(rows)} rows for {len(ids)} ids")
        return rows

    def serves(self) -> str | None:
        """Whether a good lookup works here; else what is wrong."""
        return None if self.lookup([self.target.start], 99)[0] == self.target.row else "a wrong row"


@dataclass(frozen=True)
class Kind:
    """Something the server must refuse. `goes_on`: the same connection must still serve afterwards."""

    name: str
    code: int
    provoke: Callable[[Wire], None]
    goes_on: bool = False


def _opened(then: Callable[[Wire], None]) -> Callable[[Wire], None]:
    def provoke(wire: Wire) -> None:
        wire.hello()
        wire.open()
        then(wire)

    return provoke


def _greeted(then: Callable[[Wire], None]) -> Callable[[Wire], None]:
    def provoke(wire: Wire) -> None:
        wire.hello()
        then(wire)

    return provoke


def kinds(target: Target) -> list[Kind]:
    """The twelve kinds for this range."""
    wrong = bytes([target.identity[0] ^ 1]) + target.identity[1:]
    low, high = target.start, target.end
    # A range that begins at row 0 has no id below it on a u32 wire; the nearest is then the one that wraps around.
    below = low - 1 if low else 0xFFFFFFFF
    return [
        Kind("identity wrong", -101, _greeted(lambda wire: wire.ask_open(identity=wrong))),
        Kind("unknown layer", -102, _greeted(lambda wire: wire.ask_open(layer=4242))),
        Kind("range reversed", -103, _greeted(lambda wire: wire.ask_open(start=high, end=low))),
        Kind("range beyond the table", -103, _greeted(lambda wire: wire.ask_open(end=target.table_rows + 1))),
        Kind("row format", -104, _greeted(lambda wire: wire.ask_open(row_bytes=ROW_BYTES + 8))),
        Kind("version", -105, lambda wire: wire.hello(0x7FFE, 0x7FFF)),
        # Without a payload, so that nothing unread is left that could make the close swallow the answer.
        Kind("bad magic", -109, lambda wire: wire.send(T_HELLO, magic=0xDEADBEEF)),
        Kind("LOOKUP before OPEN", -110, _greeted(lambda wire: wire.ask([low]))),
        Kind("id below the range", -111, _opened(lambda wire: wire.ask([low, below])), goes_on=True),
        Kind("id at the end of the range", -111, _opened(lambda wire: wire.ask([low, high])), goes_on=True),
        Kind("count above max_rows", -112, _opened(lambda wire: wire.ask([low] * (MAX_ROWS + 1))), goes_on=True),
        Kind("second OPEN", -113, _opened(lambda wire: wire.ask_open())),
    ]


def _try(kind: Kind, target: Target) -> tuple[int | None, str]:
    """The code that the server answered, and a reason if something is wrong all the same."""
    with Wire(target) as wire:
        try:
            kind.provoke(wire)
            wire.receive(T_ROWS)
            return None, "answered as if it were right"
        except Refused as refused:
            if refused.code in BUSY and refused.code != kind.code:
                raise Unavailable(str(refused)) from refused
            if refused.code != kind.code:
                return refused.code, refused.reason
        except WireError as error:
            return None, str(error)
        if kind.goes_on:
            try:
                return kind.code, wire.serves() or ""
            except (WireError, Refused) as error:
                return kind.code, f"the connection should go on serving: {error}"
    return kind.code, ""


def _serves_afresh(target: Target) -> str:
    try:
        return _good_lookup(target)
    except (WireError, Refused) as error:
        return f"a fresh connection is not served: {error}"


def _good_lookup(target: Target) -> str:
    with Wire(target) as wire:
        wire.hello()
        wire.open()
        return wire.serves() or ""


def try_refusals(target: Target) -> dict[str, Any]:
    """Tries all kinds.

    Raises:
        Unavailable: a good connection is not served to begin with, so that nothing can be learnt.
        Contradiction: it is refused or answered with another row, although this node's shard says it is right.
    """
    try:
        if trouble := _good_lookup(target):
            raise Contradiction(f"{target.url}: layer {target.layer} row {target.start}: {trouble}")
    except Refused as refused:
        if refused.code in BUSY:
            raise Unavailable(f"{target.url}: {refused}") from refused
        raise Contradiction(f"OPEN refused by the server, {refused}") from refused
    except WireError as error:
        raise Unavailable(f"{target.url}: {error}") from error
    details = []
    for kind in kinds(target):
        code, reason = _try(kind, target)
        reason = reason or _serves_afresh(target)
        right = code == kind.code and not reason
        details.append({"kind": kind.name, "expected": kind.code, "got": code, "right": right, "reason": reason})
    return {"tried": len(details), "right": sum(bool(one["right"]) for one in details), "details": details}
