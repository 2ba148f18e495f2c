"""Which workspaces there are, where they are, and which machine each has: rows of the catalog."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from ortet.backend.abc import Catalog
from ortet.codec import decode, encode
from ortet.errors import Conflict, NotFound
from ortet.graph.refs import check_name

Files = Literal["inplace", "private"]
Scope = Literal["workspace", "host"]
RowChange = tuple[str, str, bytes | None]
"""A row to write together with a head move: kind, key, value or None to delete."""


class WorkspaceRow(msgspec.Struct, frozen=True):
    """A workspace: a branch with a machine. A map, so that later releases may add keys."""

    name: str
    path: bytes  # the directory as its user knows it, and as its processes see it
    host: str
    engine: str
    files: Files
    machine: str  # id; its home is local/machines/ID
    scope: Scope = "workspace"
    parent: str = ""  # the workspace it was forked from
    base: bytes = b""  # private only: Oid of the image `land` compares with
    forks: str = ""  # engine its forks use; "" lets the host decide

    @property
    def directory(self) -> Path:
        return Path(os.fsdecode(self.path))


class Registry:
    """Finds workspaces by name and by directory."""

    def __init__(self, catalog: Catalog, host: str) -> None:
        self._catalog = catalog
        self._host = host

    def get(self, name: str) -> WorkspaceRow | None:
        found = self._catalog.row("workspace", name)
        return decode(WorkspaceRow, found.value) if found else None

    def need(self, name: str) -> WorkspaceRow:
        row = self.get(name)
        if row is None:
            raise NotFound(
                "no_workspace", f"no workspace is named {name!r}: `ortet branch` lists them"
            )
        return row

    def at(self, path: Path, files: Files, engine: str) -> WorkspaceRow | None:
        """The workspace opened at this directory of this host before."""
        found = self._catalog.row("place", self._place(os.fsencode(path), files, engine))
        return self.get(found.value.decode()) if found else None

    def all(self) -> Iterator[WorkspaceRow]:
        after = ""
        while rows := self._catalog.rows("workspace", after):
            for row in rows:
                yield decode(WorkspaceRow, row.value)
            after = rows[-1].key

    def free_name(self, path: Path) -> str:
        """The directory's base name made fit for a branch; with a number when it is taken."""
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", path.name).strip("-.") or "workspace"
        if stem.endswith(".lock"):
            stem = stem.removesuffix(".lock") + "-lock"
        name, number = stem, 1
        while self.get(name) is not None or self._catalog.head(f"branch:{name}") is not None:
            number += 1
            name = f"{stem}-{number}"
        return name

    def claim(self, name: str) -> str:
        """A name its user chose; a branch that has it, and no workspace, is gone on with."""
        row = self.get(check_name(name))
        if row is not None:
            raise Conflict(
                "name_taken",
                f"workspace {name!r} is at {row.directory} already: choose another name",
            )
        return name

    def free_forks(self, parent: str, count: int) -> list[str]:
        """The next `count` names below `parent`; a living branch's number is not used again."""
        prefix, last, after = f"branch:{parent}/", 0, ""
        while heads := self._catalog.heads(prefix, after):
            tails = (head.name[len(prefix) :] for head in heads)
            last = max([last, *(int(tail) for tail in tails if tail.isdigit())])
            after = heads[-1].name
        return [f"{parent}/{last + number}" for number in range(1, count + 1)]

    def add(self, row: WorkspaceRow) -> None:
        """A new workspace; Conflict("row_moved") when another process has just made one here."""
        if not row.parent:
            place = self._place(row.path, row.files, row.engine)
            self._catalog.put_row("place", place, row.name.encode(), expect=0)
        self._catalog.put_row("workspace", row.name, encode(row), expect=0)

    def save(self, row: WorkspaceRow) -> None:
        for kind, key, value in self.rows_of(row):
            if value is not None:
                self._catalog.put_row(kind, key, value)

    def rows_of(self, row: WorkspaceRow) -> list[RowChange]:
        rows: list[RowChange] = [("workspace", row.name, encode(row))]
        if not row.parent:
            place = self._place(row.path, row.files, row.engine)
            rows.append(("place", place, row.name.encode()))
        return rows

    def drop(self, row: WorkspaceRow) -> None:
        self._catalog.drop_row("workspace", row.name)
        if not row.parent:
            self._catalog.drop_row("place", self._place(row.path, row.files, row.engine))

    def move(self, row: WorkspaceRow, path: Path) -> WorkspaceRow:
        """The directory was moved: remember where it is now."""
        self._catalog.drop_row("place", self._place(row.path, row.files, row.engine))
        moved = msgspec.structs.replace(row, path=os.fsencode(path), host=self._host)
        self.save(moved)
        return moved

    def _place(self, path: bytes, files: Files, engine: str) -> str:
        how = files if files == "inplace" else f"{files}-{engine}"
        return f"{self._host}:{how}:{path.decode('utf-8', 'backslashreplace')}"
