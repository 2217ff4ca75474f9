"""Stands in for the reader extension: asks the server over the tools' wire client, and can be told to misbehave.

Copied beside a test as dsv41_engram_remote.py; FAKE_READER in the environment says how it behaves.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch


class _Table:
    def __init__(self, **how: Any) -> None:
        import ident
        import refusals

        self.mode = os.environ.get("FAKE_READER", "")
        root = Path(os.environ["VLLM_ENGRAM_REMOTE_ROOT"])
        url = os.environ["VLLM_ENGRAM_REMOTE"].split(",")[how["shard"]]
        key_file = os.environ.get("VLLM_ENGRAM_REMOTE_KEY_FILE")
        key = Path(key_file).read_bytes() if key_file else b""
        (layer,) = ident.read_layers(root, Path(how["model_dir"]), [how["layer"]])
        identity = bytes.fromhex(layer.recomputed)
        target = refusals.Target(url, layer.layer, how["row_start"], how["row_end"], layer.rows, identity, b"", key)
        self.how = how
        self.counts = {"fallbacks": 0, "remote_lookups": 0}
        try:
            self.wire = refusals.Wire(target)
            self.wire.hello()
            self.wire.open(max_rows=how["max_rows"])
        except refusals.Refused as refused:
            raise RuntimeError(f"OPEN refused by the server, {refused}") from refused
        except refusals.Unavailable as error:
            raise RuntimeError(str(error)) from error

    def read_rows(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert ids.is_contiguous()
        assert len(ids) <= self.how["max_rows"]
        live = [row for row in ids.tolist() if row >= 0]
        weights = torch.zeros(len(ids), 256, dtype=torch.uint8)
        scales = torch.zeros(len(ids), 8, dtype=torch.uint8)
        if live:
            raw = torch.frombuffer(bytearray(b"".join(self.wire.lookup(live))), dtype=torch.uint8).view(-1, 264)
            weights[ids >= 0], scales[ids >= 0] = raw[:, :256], raw[:, 256:]
        if self.mode != "silently local":
            self.counts["remote_lookups"] += bool(live)
        if self.mode == "falls back once" and len(ids) == 144:
            self.counts["fallbacks"] += 1
        if self.mode == "dead ids are not zero" and (ids < 0).any():
            weights[ids < 0] = 1
        if self.mode == "off by one" and len(ids) == 24:
            weights = weights.roll(1, 0)
        if self.mode == "wrong scale" and len(ids) == 12:
            scales[3, 7] ^= 1
        return weights, scales

    def stats(self) -> dict[str, Any]:
        return dict(self.counts)

    def close(self) -> None:
        self.wire.socket.close()


def open_remote_table(**how: Any) -> _Table:
    assert how["device"] == "cpu"
    assert os.environ["VLLM_ENGRAM_REMOTE_REQUIRED"] == "1"
    print("a compiler may print on stdout")
    print("and on stderr", file=sys.stderr)
    return _Table(**how)
