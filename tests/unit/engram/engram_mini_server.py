"""A table server in a few lines, for the tools' wire client; it can be told to misbehave."""

import contextlib
import hashlib
import hmac
import socket
import struct
import threading
from pathlib import Path
from types import TracebackType

from dsv41ctl.engram.manifest import LayerTable, Manifest

HEADER = struct.Struct("<IHHIIQ")
MAGIC = 0x314C464F
KEY_SIZES = {1: 40, 3: 112}


class Refusal(Exception):
    def __init__(self, code: int, reason: str, *, close: bool = True) -> None:
        super().__init__(reason)
        self.code, self.reason, self.close = code, reason, close


class MiniServer:
    """Serves until its `with` block ends.

    Args:
        wrong_code: kind of refusal (its code) -> the code answered instead.
        corrupt: global row ids whose first byte is flipped.
        die_after: stop accepting after a refusal with this code.
        ready: False answers -107 to every OPEN.
    """

    def __init__(self, manifest: Manifest, model_dir: Path, *, key: bytes = b"", max_rows: int = 65536) -> None:
        self.manifest, self.key, self.max_rows = manifest, key, max_rows
        self.wrong_code: dict[int, int] = {}
        self.silent: set[int] = set()
        self.corrupt: set[int] = set()
        self.die_after: int | None = None
        self.ready = True
        self.foreign_key = False
        self._files = {
            plane.file: (model_dir / plane.file).read_bytes() for t in manifest.layers for plane in (t.weight, t.scale)
        }
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self._listener.getsockname()[1]}@127.0.0.1"

    def __enter__(self) -> "MiniServer":
        self._acceptor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._acceptor.join(5)
        for thread in self._threads:
            thread.join(5)

    def _stop(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(peer,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, peer: socket.socket) -> None:
        with peer:
            peer.settimeout(10)
            session = _Session(self, peer)
            while True:
                try:
                    session.step()
                except Refusal as refusal:
                    if refusal.code in self.silent:
                        return
                    code = self.wrong_code.get(refusal.code, refusal.code)
                    text = refusal.reason.encode()
                    session.send(5, struct.pack("<iI", code, len(text)) + text)
                    if refusal.code == self.die_after:
                        self._stop()
                        return
                    if refusal.close:
                        return
                except OSError:
                    return

    def rows(self, table: LayerTable, ids: list[int]) -> bytes:
        weights, scales = bytearray(), bytearray()
        for row in ids:
            weight, scale = (
                self._files[plane.file][plane.offset + row * width :][:width]
                for plane, width in ((table.weight, 256), (table.scale, 8))
            )
            if row in self.corrupt:
                weight = bytes([weight[0] ^ 1]) + weight[1:]
            weights += weight
            scales += scale
        return bytes(weights + scales)


class _Session:
    def __init__(self, server: MiniServer, peer: socket.socket) -> None:
        self.server, self.peer = server, peer
        self.nonces = b""
        self.table: LayerTable | None = None
        self.start = self.end = self.max_rows = 0

    def send(self, kind: int, payload: bytes, *, flags: int = 0, seq: int = 0) -> None:
        self.peer.sendall(HEADER.pack(MAGIC, 1, kind, len(payload), flags, seq) + payload)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            got = self.peer.recv(size - len(data))
            if not got:
                raise OSError("gone")
            data += got
        return data

    def step(self) -> None:
        magic, version, kind, length, _, seq = HEADER.unpack(self._exactly(HEADER.size))
        if magic != MAGIC or kind not in (1, 3, 6) or length > 8 + 4 * self.server.max_rows:
            raise Refusal(-109, f"magic {magic:#x}, type {kind}, length {length}")
        if version != 1:
            raise Refusal(-105, f"version {version}")
        payload = self._exactly(length)
        if kind in KEY_SIZES and length != KEY_SIZES[kind]:
            raise Refusal(-109, f"type {kind} of {length} bytes")
        {1: self._hello, 3: self._open, 6: self._lookup}[kind](payload, seq)

    def _hello(self, payload: bytes, _: int) -> None:
        low, high, _, nonce = struct.unpack("<HHI32s", payload)
        if not low <= 1 <= high:
            raise Refusal(-105, f"versions {low}..{high}")
        ours = bytes(range(32))
        self.nonces = nonce + ours
        self.send(2, struct.pack("<HBBI32s", 1, bool(self.server.key), 0, self.server.max_rows, ours))

    def _mac(self, word: bytes, body: bytes) -> bytes:
        key = b"another key" if self.server.foreign_key and word == b"ack" else self.server.key
        return hmac.new(key, self.nonces + word + body, hashlib.sha256).digest() if key else bytes(32)

    def _open(self, payload: bytes, _: int) -> None:
        if self.table is not None:
            raise Refusal(-113, "second OPEN")
        body, mac = payload[:80], payload[80:]
        layer, row_bytes, form, _, start, end, identity, max_rows, _, _ = struct.unpack("<IIIIQQ32sIIQ", body)
        if not hmac.compare_digest(mac, self._mac(b"open", body)):
            raise Refusal(-106, "wrong mac")
        if not self.server.ready:
            raise Refusal(-107, "table not ready")
        table = next((one for one in self.server.manifest.layers if one.layer == layer), None)
        if table is None:
            raise Refusal(-102, f"unknown layer {layer}")
        if (row_bytes, form) != (264, 1):
            raise Refusal(-104, f"row format {form} of {row_bytes} bytes")
        if not 0 <= start < end <= table.rows:
            raise Refusal(-103, f"range [{start}, {end})")
        if identity.hex() != table.identity:
            raise Refusal(-101, "identity")
        self.table, self.start, self.end = table, start, end
        self.max_rows = min(max_rows, self.server.max_rows)
        answer = struct.pack("<QIIQ32s", table.rows, self.max_rows, 16, 1, identity)
        self.send(4, answer + self._mac(b"ack", answer))

    def _lookup(self, payload: bytes, seq: int) -> None:
        if self.table is None:
            raise Refusal(-110, "LOOKUP before OPEN")
        count, _, *ids = struct.unpack(f"<{len(payload) // 4}I", payload)
        if not 1 <= count <= self.max_rows:
            raise Refusal(-112, f"count {count}", close=False)
        if outside := [row for row in ids if not self.start <= row < self.end]:
            raise Refusal(-111, f"row id {outside[0]}", close=False)
        for first in range(0, count, 16):
            part = ids[first : first + 16]
            body = struct.pack("<II", first, len(part)) + self.server.rows(self.table, part)
            self.send(7, body, flags=int(first + 16 >= count), seq=seq)
