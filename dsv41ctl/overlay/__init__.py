"""Overlays: an image's own engram.py plus an edit set. Pure but for reading the edit sets that ship."""

from dsv41ctl.overlay.editset import Edit, EditSet, edit_set_names, load_edit_set, load_edit_sets
from dsv41ctl.overlay.render import (
    MARK,
    AnchorProblem,
    Derived,
    EditsDoNotFit,
    Rendered,
    UnknownImage,
    anchor_problems,
    derive,
    render,
)

__all__ = [
    "MARK",
    "AnchorProblem",
    "Derived",
    "Edit",
    "EditSet",
    "EditsDoNotFit",
    "Rendered",
    "UnknownImage",
    "anchor_problems",
    "derive",
    "edit_set_names",
    "load_edit_set",
    "load_edit_sets",
    "render",
]
