"""Writes and reads capture files. A run in progress is `OUT.partial`, plain JSONL; only a whole one gets its name."""

import gzip
import hashlib
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError

from dsv41ctl.ab.records import SCHEMA, Capture, Footer, Header, PromptRecord
from dsv41ctl.errors import Dsv41Error, Inconclusive, UsageError

__all__ = ["CaptureFileError", "Writer", "partial_of", "read_capture", "refuse_existing"]


_Record = TypeVar("_Record", bound=BaseModel)


class CaptureFileError(Inconclusive):
    """A capture file is damaged, incomplete or of another schema: nothing can be concluded from it."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}", hint=f"dsv41ctl ab run --out {path} ... makes it again")


def partial_of(out: Path) -> Path:
    """Where a run in progress is written."""
    return out.with_name(out.name + ".partial")


def refuse_existing(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Makes sure that no earlier run is lost.

    Raises:
        UsageError: there is one, and neither option was given.
    """
    partial = partial_of(out)
    if not out.parent.is_dir():
        raise UsageError(f"{out}: no directory {out.parent}", hint=f"mkdir -p {out.parent}")
    if overwrite:
        return
    if out.exists():
        raise UsageError(f"{out} exists", hint="another --out, or --yes to replace it")
    if partial.exists() and not resume:
        raise UsageError(f"{partial} is left of an interrupted run", hint="--resume, or --yes to start over")


class Writer:
    """Appends records to OUT.partial and at the end moves it into place.

    Args:
        out: the final name; compressed when it ends in `.gz`.
        header: of this run. With `resume`, an earlier header that fits is kept instead.
    """

    def __init__(self, out: Path, header: Header, *, resume: bool = False) -> None:
        self.out = out
        self.partial = partial_of(out)
        self.header = header
        self.done: list[PromptRecord] = []
        self.resumed = 0
        self._digest = hashlib.sha256()
        earlier = self._earlier() if resume and self.partial.exists() else b""
        self._file: BinaryIO = self.partial.open("wb" if not earlier else "r+b")
        if earlier:
            # A last line that was cut by the interruption is dropped.
            self._file.truncate(len(earlier))
            self._file.seek(0, os.SEEK_END)
            self._digest.update(earlier)
            self.resumed = len(self.done)
        else:
            self._line(header)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, record: PromptRecord) -> None:
        """Writes one record; it is on disk when this returns."""
        self._line(record)
        self.done.append(record)

    def finish(self, requests: int, retries: int, seconds: float) -> Footer:
        """Writes the footer and gives the file its name."""
        footer = Footer(
            prompts=len(self.done),
            generated_tokens=sum(len(record.generated.tokens) for record in self.done),
            prompt_positions=sum(len(record.forced or ()) for record in self.done),
            requests=requests,
            retries=retries,
            resumed=self.resumed,
            seconds=round(seconds, 3),
            sha256=self._digest.hexdigest(),
        )
        self._line(footer)
        self._file.close()
        if self.out.suffix == ".gz":
            packed = self.out.with_name(self.out.name + ".tmp")
            with self.partial.open("rb") as plain, packed.open("wb") as raw:
                # No name and no time inside, so that equal captures are equal files.
                with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as target:
                    shutil.copyfileobj(plain, target)
                raw.flush()
                os.fsync(raw.fileno())
            packed.replace(self.out)
            self.partial.unlink()
        else:
            self.partial.replace(self.out)
        return footer

    def _line(self, record: BaseModel) -> None:
        data = record.model_dump_json(by_alias=True).encode() + b"\n"
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._digest.update(data)

    def _earlier(self) -> bytes:
        """The whole lines of the interrupted run; checks that it is the same run as this one."""
        data = self.partial.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if not lines:
            return b""
        restart = "remove it, or --yes to start over"
        try:
            header = _header(self.partial, lines[0])
            records = [_record(self.partial, number, line) for number, line in enumerate(lines[1:], start=2)]
        except Dsv41Error as error:
            raise UsageError(f"cannot resume: {error.message}", hint=restart) from error
        for name in ("label", "arm", "url", "model", "system_fingerprint", "version", "flags", "prompts"):
            was, now = getattr(header, name), getattr(self.header, name)
            if was != now:
                raise UsageError(f"cannot resume {self.partial}: its {name} differs from this run's", hint=restart)
        _in_order(self.partial, header, records)
        self.header = header
        self.done = records
        return whole


def read_capture(path: Path) -> Capture:
    """Reads and verifies a whole capture.

    Raises:
        UsageError: no such file.
        CaptureFileError: damaged, incomplete, of another schema, or its records are not in order.
    """
    digest = hashlib.sha256()
    header: Header | None = None
    records: list[PromptRecord] = []
    footer: Footer | None = None
    for number, line in enumerate(_lines(path), start=1):
        if footer is not None:
            raise CaptureFileError(path, f"line {number}: more after the footer")
        if header is None:
            header = _header(path, line)
        elif line.startswith(b'{"record":"footer"'):
            footer = _parse(path, number, line, Footer)
            if footer.sha256 != digest.hexdigest():
                raise CaptureFileError(path, "sha256 of its records is not the one that its footer names")
        else:
            records.append(_record(path, number, line))
        digest.update(line)
    if header is None:
        raise CaptureFileError(path, "empty")
    if footer is None:
        raise CaptureFileError(path, f"no footer after {len(records)} prompts: an incomplete run")
    _in_order(path, header, records)
    if not footer.prompts == len(records) == len(header.prompts):
        raise CaptureFileError(
            path, f"{len(records)} prompt records, {footer.prompts} in the footer, {len(header.prompts)} in the header"
        )
    return Capture(path, header, tuple(records), footer)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as source:
            for line in source:
                if not line.endswith(b"\n"):
                    raise CaptureFileError(path, "cut off within a line")
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CaptureFileError(path, f"damaged gzip data: {error}") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="name a file that `dsv41ctl ab run` wrote") from error


def _header(path: Path, line: bytes) -> Header:
    if not line.startswith(b'{"record":"header"'):
        raise CaptureFileError(path, "not a capture: its first line is no header")
    # The schema number decides first: a newer header may well have other fields.
    schema = _parse(path, 1, line, _Schema).schema_
    if schema != SCHEMA:
        raise CaptureFileError(path, f"schema {schema}; this version reads schema {SCHEMA}")
    return _parse(path, 1, line, Header)


class _Schema(BaseModel):
    schema_: int = Field(alias="schema")


def _record(path: Path, number: int, line: bytes) -> PromptRecord:
    return _parse(path, number, line, PromptRecord)


def _parse(path: Path, number: int, line: bytes, model: type[_Record]) -> _Record:
    try:
        return model.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the record"
        raise CaptureFileError(path, f"line {number}: {where}: {first['msg']}") from error


def _in_order(path: Path, header: Header, records: list[PromptRecord]) -> None:
    for place, record in enumerate(records):
        if record.index != place or place >= len(header.prompts):
            raise CaptureFileError(path, f"record {place} is of prompt {record.index}: records out of order")
        if record.sha256 != header.prompts[place].sha256:
            raise CaptureFileError(path, f"record {place} is not of the prompt that the header lists there")
