"""The ranks of one serve: rendezvous, broadcast of work, all-gather of rows. gloo over TCP."""

import os
import re
import socket
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

__all__ = ["Group", "PeerLostError"]

HEADER = 72
_INLINE = HEADER - 4


class PeerLostError(RuntimeError):
    """A rank went away or no longer answers."""


class Group:
    """The ranks of one serve. Every method but the constructor is collective: all ranks call it in the same order.

    Args:
        rank: this process's rank.
        tp: number of ranks.
        address: where rank 0 answers the rendezvous.
        port: its port.
        join_timeout_s: how long to wait for the other ranks.
        step_timeout_s: how long a rank may take to answer in one step.
    """

    def __init__(
        self, rank: int, tp: int, address: str, port: int, join_timeout_s: float, step_timeout_s: float
    ) -> None:
        self.rank = rank
        self.tp = tp
        self._listener: socket.socket | None = None
        if tp == 1:
            return
        if address.startswith("127.") or address in ("::1", "localhost"):
            # gloo would otherwise bind the address that the host's own name resolves to.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        timeout = timedelta(seconds=join_timeout_s)
        listen_fd = None
        if rank == 0:
            # The store binds every address unless it is handed a socket that is already bound.
            self._listener = socket.create_server((address, port), backlog=tp * 2, reuse_port=False)
            listen_fd = self._listener.detach()
        try:
            store = dist.TCPStore(address, port, tp, is_master=rank == 0, timeout=timeout, master_listen_fd=listen_fd)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=tp, timeout=timeout)
            self._exchange = dist.new_group(backend="gloo", timeout=timedelta(seconds=step_timeout_s))
            self.barrier()
        except (RuntimeError, dist.DistError) as error:
            raise PeerLostError(
                f"the {tp} ranks did not meet at {address}:{port} within {join_timeout_s:g} s: {_first_line(error)}"
            ) from error

    def barrier(self) -> None:
        """Returns when all ranks are here."""
        if self.tp > 1:
            self._guard(lambda: dist.all_reduce(torch.zeros(1), group=self._exchange))

    def broadcast(self, kind: int, numbers: list[int], payload: torch.Tensor | None) -> None:
        """Rank 0 sends a work item: its kind, up to two numbers, and int64 tokens."""
        if self.tp == 1:
            return
        count = 0 if payload is None else len(payload)
        header = torch.zeros(HEADER, dtype=torch.int64)
        header[:2] = torch.tensor([kind, count])
        header[2 : 2 + len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
        inline = payload is not None and count <= _INLINE
        if inline:
            header[4 : 4 + count] = payload
        self._guard(lambda: dist.broadcast(header, src=0, group=self._exchange))
        if payload is not None and not inline:
            self._guard(lambda: dist.broadcast(payload, src=0, group=self._exchange))

    def receive(self) -> tuple[int, list[int], torch.Tensor]:
        """What rank 0 broadcast."""
        header = torch.zeros(HEADER, dtype=torch.int64)
        self._guard(lambda: dist.broadcast(header, src=0, group=self._exchange))
        kind, count, *numbers = header[:4].tolist()
        if count <= _INLINE:
            return kind, numbers, header[4 : 4 + count].clone()
        payload = torch.empty(count, dtype=torch.int64)
        self._guard(lambda: dist.broadcast(payload, src=0, group=self._exchange))
        return kind, numbers, payload

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor of this shape, in rank order. Travels as bytes, so any dtype stays exact."""
        if self.tp == 1:
            return [tensor]
        mine = tensor.contiguous().view(torch.uint8)
        parts = [torch.empty_like(mine) for _ in range(self.tp)]
        self._guard(lambda: dist.all_gather(parts, mine, group=self._exchange))
        return [part.view(tensor.dtype) for part in parts]

    def _guard(self, collective: Callable[[], object]) -> None:
        try:
            collective()
        except (RuntimeError, dist.DistError) as error:
            raise PeerLostError(f"lost a peer: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    # gloo begins with its own source position and ends with advice; neither is about this serve.
    return re.sub(r"^\[[^\]]*\.cc:\d+\]\s*", "", line).split(". This is typically")[0]
