"""What a session begins with, and where."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ortet.backend.abc import RowChange
from ortet.journal.events import Draft
from ortet.session.lifecycle import SessionRow
from ortet.session.registry import Files


class Place(msgspec.Struct, frozen=True):
    """Where a session has its files: nowhere, or in a directory."""

    path: str = ""
    engine: str = "auto"
    files: Files | None = None


NOWHERE = Place()


class Start(msgspec.Struct, frozen=True):
    """What a session begins with. `rows` are written with it; `family`: the one it belongs to;
    `spent`: what it has used up of its budget elsewhere."""

    drafts: Sequence[Draft] = ()
    rows: Callable[[SessionRow], Sequence[RowChange]] = lambda _: ()
    family: str = ""
    parent: str = ""
    spent: dict[str, float] = {}


FRESH = Start()
