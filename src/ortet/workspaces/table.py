"""Which workspaces there are, where they are, and which machine each has: rows of the catalog."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from ortet._util.codec import decode, encode
from ortet.backends.base import Catalog, RowChange
from ortet.errors import Conflict, NotFound, Unsupported
from ortet.history.refs import check_ref_name, is_ref_name
from ortet.machines.base import Network
from ortet.machines.limits import MachineLimits, parse_limits

FilesMode = Literal["inplace", "private"]
RootScope = Literal["workspace", "host"]

_MAX_STEM_LENGTH = 100
"""Characters a directory's name gives to its workspace: forks of forks need some more."""

_NUMBER = re.compile(r"[0-9]{1,9}")


class FormerHostMachine(msgspec.Struct, frozen=True):
    """A machine on a host that had the workspace before, and the head when another took it."""

    machine: str
    engine: str
    head: bytes = b""


class WorkspaceRow(msgspec.Struct, frozen=True):
    """A workspace: a branch with a machine. A map, so that later releases may add keys."""

    name: str
    path: bytes  # the directory as its user knows it, and as its processes see it
    host: str
    engine: str
    files: FilesMode
    machine: str  # id; its home is local/machines/ID
    scope: RootScope = "workspace"
    parent: str = ""  # the workspace it was forked from
    base: bytes = b""  # private only: Oid of the image it began with when it left the directory
    forks: str = ""  # engine its forks use; "" lets the host decide
    limits: MachineLimits = MachineLimits()  # of its live machines, and those of its forks
    network: Network = "none"  # of the same
    room: bool = False  # private, and made from no directory: `base` is empty
    left: dict[str, FormerHostMachine] = {}  # private only, by host: see session/arriving

    @property
    def empty_image(self) -> bytes:
        """The image of a commit that holds no files, if such a commit may be meant here."""
        return self.base if self.room else b""

    @property
    def machines(self) -> list[str]:
        """The ids of all that may have files of it."""
        return [self.machine, *(left.machine for left in self.left.values())]

    @property
    def directory(self) -> Path:
        return Path(os.fsdecode(self.path))

    @property
    def location_key(self) -> str:
        """What leads back from a directory; a name that is no UTF-8 looks like no other path."""
        how = self.files if self.files == "inplace" else f"{self.files}-{self.engine}"
        try:
            path = self.path.decode()
        except UnicodeDecodeError:
            path = f"raw:{self.path.decode('latin-1')}"
        return f"{self.host}:{how}:{path}"


class WorkspaceTable:
    """Finds workspaces by name and by directory."""

    def __init__(self, catalog: Catalog, host: str) -> None:
        self._catalog = catalog
        self.host = host

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

    def find_at(self, path: Path, files: FilesMode, engine: str) -> WorkspaceRow | None:
        """The workspace opened at this directory of this host before."""
        return self._find_by_location(self.draft(path, files, engine).location_key)

    def draft(self, path: Path, files: FilesMode, engine: str) -> WorkspaceRow:
        """A row for a directory of this host, without a name and a machine yet."""
        raw = os.fsencode(path)
        return WorkspaceRow("", path=raw, host=self.host, engine=engine, files=files, machine="")

    def all(self) -> Iterator[WorkspaceRow]:
        after = ""
        while rows := self._catalog.rows("workspace", after):
            for row in rows:
                yield decode(WorkspaceRow, row.value)
            after = rows[-1].key

    def free_name(self, row: WorkspaceRow) -> str:
        """The directory's base name made fit for a branch; with a number when it is taken."""
        name = stem = stem_of(row.directory.name)
        number = 1
        while not self._is_free(name, row):
            number += 1
            name = f"{stem}-{number}"
        return name

    def claim(self, name: str, row: WorkspaceRow) -> str:
        """A name its user chose; a branch that has it, and no workspace, is gone on with."""
        held = self.get(check_ref_name(name))
        if held is not None and not _is_same_workspace(held, row):
            raise _name_taken(held)
        return name

    def free_forks(self, parent: str, count: int, suffixes: Sequence[str] = ()) -> list[str]:
        """The next `count` names below `parent`; a living branch's number is not used again.

        With `tails`, these names: Conflict("name_taken") when there is one of them already.
        """
        if suffixes:
            return [self._check_unused(check_ref_name(f"{parent}/{tail}")) for tail in suffixes]
        prefix, last, after = f"branch:{parent}/", 0, ""
        while heads := self._catalog.heads(prefix, after):
            ends = (head.name[len(prefix) :] for head in heads)
            last = max([last, *(int(end) for end in ends if _NUMBER.fullmatch(end))])
            after = heads[-1].name
        names: list[str] = []
        while len(names) < count:
            last += 1
            name = check_ref_name(f"{parent}/{last}")
            if self.get(name) is None:  # its user may have chosen it, and not committed yet
                names.append(name)
        return names

    def add(self, row: WorkspaceRow) -> WorkspaceRow:
        """Make a workspace; returns the one at its place, made by whoever came first.

        The name is taken before the place. Killed between the two, the next to open the directory
        finds its name taken for this very place and goes on from there.
        Conflict("name_taken") when the name belongs to another place.
        """
        try:
            self._catalog.put_row("workspace", row.name, encode(row), expect=0)
        except Conflict as error:
            if error.kind == "swept":
                raise
            held = self.need(row.name)
            if not _is_same_workspace(held, row):
                raise _name_taken(held) from None
            row = held
        found = self._catalog.row("place", row.location_key)
        if found is None or self.get(found.value.decode()) is None:
            version = found.version if found else 0
            with suppress(Conflict):
                self._catalog.put_row("place", row.location_key, row.name.encode(), expect=version)
        holder = self._find_by_location(row.location_key)
        if holder is None or holder.name == row.name:
            return row
        self._catalog.drop_row("workspace", row.name)
        return holder

    def rows_of(self, row: WorkspaceRow) -> list[RowChange]:
        rows = [RowChange("workspace", row.name, encode(row))]
        if not row.parent:
            rows.append(RowChange("place", row.location_key, row.name.encode()))
        return rows

    def drop(self, row: WorkspaceRow) -> None:
        rows = [RowChange("workspace", row.name, None)]
        held = self._find_by_location(row.location_key)
        if held is not None and held.name == row.name:
            rows.append(RowChange("place", row.location_key, None))
        self._catalog.move([], verb="drop", rows=rows)

    def limit(
        self, row: WorkspaceRow, limits: Mapping[str, Any] | None, network: str | None
    ) -> WorkspaceRow:
        """The row with these limits and this network, remembered if it has a name; None leaves each
        as it is."""
        if limits is None and network is None:
            return row
        check_live("criu" in (row.engine, row.forks), row.engine, limits, network)
        new = row
        if limits is not None:
            new = msgspec.structs.replace(new, limits=parse_limits(limits))
        if network is not None and network != row.network:
            new = msgspec.structs.replace(new, network=usable_network(network))
        if new != row and row.name:
            self._catalog.put_row("workspace", row.name, encode(new))
        return new

    def move(self, row: WorkspaceRow, path: Path) -> WorkspaceRow:
        """The directory was moved: remember where it, and what its forks would land on, is now."""
        place = {"path": os.fsencode(path), "host": self.host}
        there = [old for old in self.all() if (old.host, old.path) == (row.host, row.path)]
        rows = [RowChange("place", old.location_key, None) for old in there if not old.parent]
        for old in there:
            rows += self.rows_of(msgspec.structs.replace(old, **place))
        self._catalog.move([], verb="relocate", rows=rows)
        return msgspec.structs.replace(row, **place)

    def move_to_this_host(self, name: str) -> None:
        """A workspace in a directory of another host is from now on that of this one at its path;
        Conflict("workspace_taken") when that is another workspace."""
        row = self.get(name)
        if row is None or row.files != "inplace" or row.host == self.host:
            return
        new = msgspec.structs.replace(row, host=self.host)
        held = self._find_by_location(new.location_key)
        if held is not None and held.name != name:
            raise Conflict(
                "workspace_taken",
                f"{row.directory} is workspace {held.name!r} on this host: drop that one, or fork "
                f"{name!r} from a commit",
            )
        rows = [RowChange("place", row.location_key, None), *self.rows_of(new)]
        self._catalog.move([], verb="relocate", rows=rows)

    def _check_unused(self, name: str) -> str:
        if self.get(name) or self._catalog.head(f"branch:{name}"):
            raise fork_taken(name)
        return name

    def _find_by_location(self, place: str) -> WorkspaceRow | None:
        found = self._catalog.row("place", place)
        return self.get(found.value.decode()) if found else None

    def _is_free(self, name: str, row: WorkspaceRow) -> bool:
        held = self.get(name)
        if held is not None:
            return _is_same_workspace(held, row)
        taken = self._catalog.head(f"branch:{name}") or self._catalog.row("session-branch", name)
        return taken is None


def _is_same_workspace(existing: WorkspaceRow, row: WorkspaceRow) -> bool:
    """Whether another process was about to make the same workspace."""
    return existing.location_key == row.location_key and not existing.parent


def stem_of(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    stem = re.sub(r"\.{2,}", ".", plain).strip("-.")[:_MAX_STEM_LENGTH].rstrip("-.") or "workspace"
    stem = re.sub(r"\.lock$", "-lock", stem)
    return stem if is_ref_name(stem) else f"{stem}-workspace"


def check_live(
    live: bool, engine: str, limits: Mapping[str, Any] | None, network: str | None
) -> None:
    """Unsupported for what only live machines have."""
    if limits is not None and not live:
        raise Unsupported(
            "no_limits",
            f"engine {engine!r} cannot limit what commands use: give engine='criu' with limits=…",
        )
    if network is not None and not live:
        raise Unsupported(
            "no_network",
            f"commands of engine {engine!r} have this host's own network: give engine='criu' with "
            "network=…",
        )


def usable_network(network: str) -> Network:
    """Invalid for what is none; Unsupported, with what to install, where this host has it not."""
    from ortet.machines.live.network.slirp import check_network, parse_network

    wanted = parse_network(network)
    check_network(wanted)
    return wanted


def fork_taken(name: str) -> Conflict:
    return Conflict(
        "name_taken", f"there is a fork {name!r} already: choose another name, or drop that one"
    )


def _name_taken(row: WorkspaceRow) -> Conflict:
    return Conflict(
        "name_taken",
        f"workspace {row.name!r} is at {row.directory} already: choose another name",
    )
