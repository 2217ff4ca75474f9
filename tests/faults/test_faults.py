"""Whatever happens to the server, rows stay exact, lookups go on, and the counters tell what happened."""

import signal
import socket
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dsv41ctl.checks.loglines import parse_log
from tests.faults.conftest import MAX_ROWS, OpenReader, Reader, TableServer, Tally
from tests.lab.conftest import free_port


def _until(reader: Reader, name: str, least: float, seconds: float = 10) -> None:
    """Goes on looking rows up until a counter is there."""
    end = time.monotonic() + seconds
    while reader.stats[name] < least:
        assert time.monotonic() < end, f"{name} stayed below {least}: {reader.stats}"
        reader.compare(50)
        time.sleep(0.01)


def test_a_healthy_server_answers_all(
    server: TableServer, open_reader: OpenReader, capfd: pytest.CaptureFixture[str]
) -> None:
    server.start()
    reader = open_reader()
    for _ in range(10):
        reader.compare()
    reader.table.close()  # type: ignore[attr-defined]
    stats = reader.stats
    assert (stats["remote_lookups"], stats["fallbacks"], stats["transport_errors"]) == (10, 0, 0)
    log = parse_log(capfd.readouterr().err)
    assert log.attaches[14].url == server.url
    assert log.attaches[14].how == "tcp, direct placement"
    assert log.staging_rows == [MAX_ROWS]
    assert log.counters[14].get("remote_lookups") == 10
    assert log.counters[14].get("fallbacks") == 0


def test_bounce_is_named_and_exact(server: TableServer, open_reader: OpenReader) -> None:
    server.start()
    reader = open_reader(_BOUNCE=1)
    for _ in range(4):
        reader.compare()
    assert reader.stats["fallbacks"] == 0
    assert reader.table.stats()["mode"] == "tcp, bounce copy"  # type: ignore[attr-defined]


def test_frozen_then_thawed(server: TableServer, open_reader: OpenReader) -> None:
    server.start()
    reader = open_reader()
    reader.compare()
    server.signal(signal.SIGSTOP)
    begun = time.monotonic()
    for _ in range(5):
        reader.compare()
    # One timeout, then local rows: no lookup waits for a connection.
    assert time.monotonic() - begun < 2
    stats = reader.stats
    assert (stats["remote_lookups"], stats["fallbacks"], stats["transport_errors"]) == (1, 5, 1)
    server.signal(signal.SIGCONT)
    _until(reader, "reconnects", 1)
    before = reader.stats["remote_lookups"]
    reader.compare()
    assert reader.stats["remote_lookups"] == before + 1


def test_killed_then_restarted(server: TableServer, open_reader: OpenReader, capfd: pytest.CaptureFixture[str]) -> None:
    server.start()
    reader = open_reader()
    reader.compare()
    server.kill()
    for _ in range(5):
        reader.compare()
    assert reader.stats["fallbacks"] == 5
    server.start()
    _until(reader, "reconnects", 1)
    before = reader.stats["remote_lookups"]
    for _ in range(3):
        reader.compare()
    assert reader.stats["remote_lookups"] == before + 3
    log = parse_log(capfd.readouterr().err)
    assert log.attach_counts[14] == 2
    assert log.fallbacks


def test_restarted_with_another_table_is_refused(
    server: TableServer, models: tuple[Path, Path], open_reader: OpenReader, capfd: pytest.CaptureFixture[str]
) -> None:
    server.start()
    reader = open_reader()
    reader.compare()
    server.kill()
    server.start(model=models[1])
    _until(reader, "refusals", 2)
    for _ in range(5):
        reader.compare()
    stats = reader.stats
    assert (stats["remote_lookups"], stats["reconnects"]) == (1, 0)
    # While it loads, the server says that it is not ready (-107).
    refusals = [text for text in parse_log(capfd.readouterr().err).refusals if "-107" not in text]
    # The same reason is not said with every attempt.
    assert len(refusals) == 1
    assert refusals[0].startswith("OPEN refused by the server, status -101: ")
    assert refusals[0].endswith("(layer 14 rank 0)")


def test_a_slow_server_never_writes_late(server: TableServer, open_reader: OpenReader) -> None:
    server.start("--fault", "delay-ms=220")
    reader = open_reader(_TIMEOUT_MS=60, _RETRY_MS=150)
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        reader.compare()
    stats = reader.stats
    assert stats["remote_lookups"] == 0
    assert stats["transport_errors"] >= 2
    # Each timeout ended one connection; all but perhaps the last were made anew.
    assert abs(stats["reconnects"] - stats["transport_errors"]) <= 1


@pytest.mark.parametrize("fault", ["half-frame=3", "garbage=3"])
def test_a_broken_answer_is_thrown_away(server: TableServer, open_reader: OpenReader, fault: str) -> None:
    server.start("--fault", fault)
    reader = open_reader()
    for _ in range(3):
        reader.compare()
    stats = reader.stats
    assert (stats["remote_lookups"], stats["fallbacks"], stats["transport_errors"]) == (2, 1, 1)
    _until(reader, "reconnects", 1)
    before = reader.stats["fallbacks"]
    for _ in range(3):
        reader.compare()
    assert reader.stats["fallbacks"] == before


def test_a_dropped_open_is_tried_again(server: TableServer, open_reader: OpenReader) -> None:
    server.start("--fault", "drop-open=1")
    reader = open_reader()
    reader.compare()
    assert reader.stats["remote_lookups"] == 1


def test_required_and_no_server_fails_in_time_with_the_reason(server: TableServer, open_reader: OpenReader) -> None:
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match=rf"127\.0\.0\.1:{server.port}.*Connection refused.*REQUIRED=1"):
        open_reader()
    assert time.monotonic() - begun < 6


def test_required_and_another_table_fails_at_once(
    server: TableServer, models: tuple[Path, Path], open_reader: OpenReader
) -> None:
    server.start(model=models[1])
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="OPEN refused by the server, status -101"):
        open_reader()
    assert time.monotonic() - begun < 2


def test_not_required_boots_on_the_fallback_and_attaches_later(server: TableServer, open_reader: OpenReader) -> None:
    reader = open_reader(_REQUIRED=0)
    for _ in range(5):
        reader.compare()
    assert reader.stats["fallbacks"] == 5
    server.start()
    _until(reader, "remote_lookups", 1)
    assert reader.stats["reconnects"] == 0


def test_a_key_must_match(server: TableServer, open_reader: OpenReader, tmp_path: Path) -> None:
    for name, key in (("right", b"a secret"), ("wrong", b"another")):
        (tmp_path / name).write_bytes(key)
        (tmp_path / name).chmod(0o600)
    server.start("--key-file", str(tmp_path / "right"))
    open_reader(_KEY_FILE=tmp_path / "right").compare()
    for named in ({"_KEY_FILE": tmp_path / "wrong"}, {"_KEY_FILE": ""}):
        with pytest.raises(RuntimeError, match="status -106") as refused:
            open_reader(**named)
        assert "secret" not in str(refused.value)


def test_ids_are_checked_before_any_byte_moves(server: TableServer, open_reader: OpenReader) -> None:
    server.start()
    reader = open_reader()
    table = reader.table
    for bad in (reader.end, -2, 2**40):
        with pytest.raises(IndexError, match=str(bad)):
            table.read_rows(torch.tensor([reader.start, bad]))  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=str(MAX_ROWS)):
        table.read_rows(torch.zeros(MAX_ROWS + 1, dtype=torch.int64))  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        table.read_rows(torch.zeros(3))  # type: ignore[attr-defined]
    assert reader.stats["rows"] == 0
    weight, scale = table.read_rows(torch.full((5,), -1, dtype=torch.int32))  # type: ignore[attr-defined]
    assert not weight.any()
    assert not scale.any()
    # Dead ids are never sent, so there was nothing to ask.
    assert reader.stats["remote_lookups"] == 0
    table.read_rows(torch.full((40,), reader.start + 7, dtype=torch.int32))  # type: ignore[attr-defined]
    reader.lookups += 1
    assert reader.stats["rows"] == 1
    table.enqueue_read(torch.tensor([reader.start]))  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="in flight"):
        table.enqueue_read(torch.tensor([reader.start]))  # type: ignore[attr-defined]
    table.wait()  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="without"):
        table.wait()  # type: ignore[attr-defined]
    table.close()  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="closed"):
        table.read_rows(torch.tensor([reader.start]))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("_TIMEOUT_MS", "0"), ("_TIMEOUT_MS", "1e3"), ("_RETRY_MS", "-1"), ("_REQUIRED", "yes"), ("_BOUNCE", "2"),
     ("_LOG_S", "1.5"), ("_KEY_FILE", "/nowhere/key"), ("", "tcp://127.0.0.1:1,,"), ("", "http://127.0.0.1:1")],
)  # fmt: skip
def test_a_bad_value_names_its_variable(open_reader: OpenReader, variable: str, value: str) -> None:
    with pytest.raises(ValueError, match=value.split(",", maxsplit=1)[0]) as refused:
        open_reader(**{variable: value})
    assert variable in str(refused.value)


def test_rdma_is_refused_by_name(open_reader: OpenReader) -> None:
    with pytest.raises(RuntimeError, match="no RDMA backend; use tcp://"):
        open_reader(**{"": "rdma://127.0.0.1:1@127.0.0.1"})


def test_an_unknown_variable_is_reported(
    server: TableServer, open_reader: OpenReader, capfd: pytest.CaptureFixture[str]
) -> None:
    server.start()
    open_reader(_TIMEOUT=5).compare()
    assert "WARNING: VLLM_ENGRAM_REMOTE_TIMEOUT is not a variable of the reader" in capfd.readouterr().err


def test_nothing_is_left_behind(remote: ModuleType, server: TableServer, open_reader: OpenReader) -> None:
    del remote
    server.start()
    open_reader().table.close()  # type: ignore[attr-defined]
    own = Path("/proc/self")
    fds, threads = len(list((own / "fd").iterdir())), len(list((own / "task").iterdir()))
    for _ in range(50):
        open_reader().table.close()  # type: ignore[attr-defined]
    # The tables are closed and still referenced: what closes must not wait for the collector.
    assert len(list((own / "fd").iterdir())) <= fds + 2
    assert len(list((own / "task").iterdir())) <= threads + 2


def test_a_host_that_never_answers_does_not_hold_up_close(remote: ModuleType, open_reader: OpenReader) -> None:
    del remote
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", free_port()))
        deaf.listen(1)
        reader = open_reader(**{"": f"tcp://127.0.0.1:{deaf.getsockname()[1]}", "_REQUIRED": 0})
        reader.compare()
        begun = time.monotonic()
        reader.table.close()  # type: ignore[attr-defined]
        assert time.monotonic() - begun < 2


def test_all_of_it_together(tally: Tally) -> None:
    # Last in this file: what the tests above compared.
    print(f"{tally.compared} rows compared, {tally.wrong} wrong")
    assert tally.compared >= 100_000
    assert tally.wrong == 0
