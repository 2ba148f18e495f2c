"""The table of workspaces: name, directory, host, engine and machine of each, as catalog rows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.validation import PATH, require
from ortet.backends.base import Catalog, RowChange
from ortet.errors import Conflict, Invalid, NotFound, Unsupported
from ortet.history.refs import check_ref_name, is_ref_name
from ortet.machines.base import Network
from ortet.machines.limits import MachineLimits, parse_limits

# Checks of directories: a workspace must be on the host and outside the store.

SECRET_PATHS = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".config/gcloud",
    ".config/gh",
    ".config/ortet",
    ".kube",
    ".docker/config.json",
    ".netrc",
    ".git-credentials",
    ".local/share/keyrings",
)
"""Paths with credentials, relative to the home directory, that are hidden from commands."""

_VIEW = re.compile(r"/proc/[^/]+/(?:root|cwd)(?:/|$)")


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return the path without symbolic links.

    Raises:
        Invalid: "inside_machine" for a path under /proc/PID/root or cwd, where links would lead to
            files of the host.
    """
    require(PATH, path=path)
    full = os.path.abspath(os.fsdecode(path))
    if _VIEW.match(full):
        raise Invalid(
            "inside_machine", f"{full} is a view into a machine: give a directory of the host"
        )
    return Path(os.path.realpath(full))


def existing_directory(path: str | os.PathLike[str]) -> Path:
    """Return the real path of an existing directory.

    Raise Invalid or NotFound for anything else.
    """
    require(PATH, path=path)
    if os.path.isdir(path):
        return real_path(path)
    if os.path.exists(path):
        raise Invalid("no_directory", f"{path} is a file: give the directory it is in")
    text = os.fsdecode(path)
    raise NotFound("no_directory", f"there is no directory {text[:200]}: create it first")


def check_outside_store(store: Path, directory: Path) -> Path:
    """Return the directory. Raise Invalid if it and the store overlap."""
    store = store.resolve()
    if store == directory or directory in store.parents or store in directory.parents:
        raise Invalid(
            "store_in_workspace",
            f"the store {store} and the directory {directory} overlap, so an agent's clean-up "
            "could delete history; put the store elsewhere (ORTET_URL, or `ortet init --store`), "
            "or give another directory",
        )
    return directory


FilesMode = Literal["inplace", "private"]
RootScope = Literal["workspace", "host"]

_MAX_STEM_LENGTH = 100
"""Highest length of a name made from a directory name. Forks of forks append to it."""

_NUMBER = re.compile(r"[0-9]{1,9}")


class FormerHostMachine(msgspec.Struct, frozen=True):
    """A machine on a host that had the workspace before, with the head at the time it was left."""

    machine: str
    engine: str
    head: bytes = b""


class WorkspaceRow(msgspec.Struct, frozen=True):
    """One workspace. Stored as a map, so that later releases may add keys."""

    name: str
    path: bytes  # the directory as its user and its processes see it
    host: str
    engine: str
    files: FilesMode
    machine: str  # id; its home is local/machines/ID
    scope: RootScope = "workspace"
    parent: str = ""  # the workspace that it was forked from
    base: bytes = b""  # private only: Oid of the image with which it left the directory
    forks: str = ""  # engine of its forks; "" lets the host decide
    limits: MachineLimits = MachineLimits()  # limits of its live machines and of its forks
    network: Network = "none"  # network of its live machines and of its forks
    room: bool = False  # private and made without a directory: `base` is empty
    # private only, by host: see sessions/history/cross_host_files
    left: dict[str, FormerHostMachine] = {}

    @property
    def empty_image(self) -> bytes:
        """Return the image that stands for a commit without files, or b"" if there is none."""
        return self.base if self.room else b""

    @property
    def machines(self) -> list[str]:
        """Return the ids of all machines that may hold files of the workspace."""
        return [self.machine, *(left.machine for left in self.left.values())]

    @property
    def directory(self) -> Path:
        return Path(os.fsdecode(self.path))

    @property
    def location_key(self) -> str:
        """Return the key by which a directory is found.

        A path that is not UTF-8 gets its own prefix.
        """
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
        """Return a workspace by name, or None."""
        found = self._catalog.row("workspace", name)
        return decode(WorkspaceRow, found.value) if found else None

    def need(self, name: str) -> WorkspaceRow:
        """Return a workspace by name. Raise NotFound("no_workspace") if there is none."""
        row = self.get(name)
        if row is None:
            raise NotFound(
                "no_workspace", f"no workspace is named {name!r}: `ortet branch` lists them"
            )
        return row

    def find_at(self, path: Path, files: FilesMode, engine: str) -> WorkspaceRow | None:
        """Return the workspace that was opened before at this directory of this host."""
        return self._find_by_location(self.draft(path, files, engine).location_key)

    def draft(self, path: Path, files: FilesMode, engine: str) -> WorkspaceRow:
        """Return a row for a directory of this host, still without name and machine."""
        raw = os.fsencode(path)
        return WorkspaceRow("", path=raw, host=self.host, engine=engine, files=files, machine="")

    def all(self) -> Iterator[WorkspaceRow]:
        """Iterate over all workspaces, by name."""
        after = ""
        while rows := self._catalog.rows("workspace", after):
            for row in rows:
                yield decode(WorkspaceRow, row.value)
            after = rows[-1].key

    def free_name(self, row: WorkspaceRow) -> str:
        """Return a free branch name made from the directory name, with a number if needed."""
        name = stem = stem_of(row.directory.name)
        number = 1
        while not self._is_free(name, row):
            number += 1
            name = f"{stem}-{number}"
        return name

    def claim(self, name: str, row: WorkspaceRow) -> str:
        """Return a name that the user chose, if it is free.

        An existing branch of this name without a workspace is continued.

        Raises:
            Conflict: "name_taken" if another workspace has the name.
        """
        held = self.get(check_ref_name(name))
        if held is not None and not _is_same_workspace(held, row):
            raise _name_taken(held)
        return name

    def free_forks(self, parent: str, count: int, suffixes: Sequence[str] = ()) -> list[str]:
        """Return the next `count` free names below `parent`.

        Numbers of existing branches are not reused.

        Args:
            suffixes: use these names instead.

        Raises:
            Conflict: "name_taken" if one of the suffixes is in use.
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
            if self.get(name) is None:  # the name may be reserved without a commit yet
                names.append(name)
        return names

    def add(self, row: WorkspaceRow) -> WorkspaceRow:
        """Add a workspace, and return the one at its location.

        Another process may have added that one first. The name is written before the location. If a
        process dies between the two, the next open of the directory finds the name reserved for it
        and continues.

        Raises:
            Conflict: "name_taken" if the name belongs to another location.
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
        """Return the row changes that store a workspace and its location."""
        rows = [RowChange("workspace", row.name, encode(row))]
        if not row.parent:
            rows.append(RowChange("place", row.location_key, row.name.encode()))
        return rows

    def drop(self, row: WorkspaceRow) -> None:
        """Remove a workspace and its location from the table."""
        rows = [RowChange("workspace", row.name, None)]
        held = self._find_by_location(row.location_key)
        if held is not None and held.name == row.name:
            rows.append(RowChange("place", row.location_key, None))
        self._catalog.move([], verb="drop", rows=rows)

    def limit(
        self, row: WorkspaceRow, limits: Mapping[str, Any] | None, network: str | None
    ) -> WorkspaceRow:
        """Return the row with these limits and this network, and store it if it has a name.

        None leaves the value as it is.
        """
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
        """Record the new path of a moved directory, also for forks that land on it."""
        place = {"path": os.fsencode(path), "host": self.host}
        there = [old for old in self.all() if (old.host, old.path) == (row.host, row.path)]
        rows = [RowChange("place", old.location_key, None) for old in there if not old.parent]
        for old in there:
            rows += self.rows_of(msgspec.structs.replace(old, **place))
        self._catalog.move([], verb="relocate", rows=rows)
        return msgspec.structs.replace(row, **place)

    def move_to_this_host(self, name: str) -> None:
        """Move an in-place workspace of another host to this host, at the same path.

        Raises:
            Conflict: "workspace_taken" if that directory is another workspace here.
        """
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
    """Return True if both rows are the same workspace, added by two processes."""
    return existing.location_key == row.location_key and not existing.parent


def stem_of(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    stem = re.sub(r"\.{2,}", ".", plain).strip("-.")[:_MAX_STEM_LENGTH].rstrip("-.") or "workspace"
    stem = re.sub(r"\.lock$", "-lock", stem)
    return stem if is_ref_name(stem) else f"{stem}-workspace"


def check_live(
    live: bool, engine: str, limits: Mapping[str, Any] | None, network: str | None
) -> None:
    """Raise Unsupported for options that only live machines have."""
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
    """Return the network if this host supports it.

    Raises:
        Invalid: the name is not known.
        Unsupported: something must be installed first; the message says what.
    """
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
