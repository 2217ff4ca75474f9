"""Edit sets as files: overlays/editsets/NAME/edits.toml."""

import tomllib
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from dsv41ctl import assets
from dsv41ctl.errors import ConfigError, UsageError

__all__ = ["MARK", "Edit", "EditSet", "edit_set_names", "edit_set_path", "load_edit_set", "load_edit_sets", "parse"]

# Stands in every change, so that `grep` finds them all in a rendered file.
MARK = "DSV41-OFFLOAD"

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=63)]
Module = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Edit(_Model):
    """One change.

    Attributes:
        name: names the change in every message.
        anchor: text of the image's file that must be there exactly once.
        replacement: what takes its place; bears the mark.
    """

    name: Name
    anchor: str = Field(min_length=1)
    replacement: str

    @model_validator(mode="after")
    def _marked(self) -> Self:
        if not self.anchor.strip():
            raise ValueError(f"edit {self.name}: the anchor is blank")
        if MARK not in self.replacement:
            raise ValueError(f"edit {self.name}: the replacement bears no {MARK} mark")
        if self.anchor == self.replacement:
            raise ValueError(f"edit {self.name} changes nothing")
        return self


class EditSet(_Model):
    """All changes to one module of the images whose file has one of these sha256.

    Attributes:
        name: the directory's name.
        module: the Python module that the overlay replaces.
        image_sha256: files that the set was made for.
        edits: the changes; their order does not matter.
    """

    name: Name
    module: Module
    image_sha256: tuple[Sha256, ...] = Field(min_length=1)
    edits: tuple[Edit, ...] = Field(min_length=1, alias="edit")

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [edit.name for edit in self.edits]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"edit name used twice: {', '.join(twice)}")
        return self


def edit_set_path(name: str) -> Path:
    """The file of an edit set, whether it exists or not."""
    return assets.overlays() / "editsets" / name / "edits.toml"


def edit_set_names() -> list[str]:
    """Edit sets that ship."""
    return sorted(path.parent.name for path in (assets.overlays() / "editsets").glob("*/edits.toml"))


def parse(name: str, text: str, *, source: str) -> EditSet:
    """An edit set from TOML text.

    Raises:
        ConfigError: not TOML, or not an edit set; names `source` and the key.
    """
    try:
        return EditSet.model_validate({**tomllib.loads(text), "name": name})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise ConfigError(f"{source}: {key}: {first['msg'].removeprefix('Value error, ')}") from error


def load_edit_set(name: str) -> EditSet:
    """Reads one edit set.

    Raises:
        UsageError: there is no such set; names those that there are.
        ConfigError: its file is not valid.
    """
    known = edit_set_names()
    if name not in known:
        raise UsageError(f"no edit set {name!r}; there are: {', '.join(known) or 'none'}", hint="dsv41ctl overlay list")
    path = edit_set_path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return parse(name, text, source=str(path))


def load_edit_sets() -> list[EditSet]:
    """Every edit set that ships."""
    return [load_edit_set(name) for name in edit_set_names()]
