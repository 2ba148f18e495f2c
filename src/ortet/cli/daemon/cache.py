"""What a worker of the host agent keeps from one command to the next: the hub, open workspaces."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortet.cli.call import Call
from ortet.cli.daemon.live_machines import remember
from ortet.errors import OrtetError

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.workspaces.table import WorkspaceRow
    from ortet.workspaces.workspace import Workspace

_OPENING = ("HOME", "XDG_CONFIG_HOME", "ORTET_CRIU", "ORTET_VAULT_KEY")
"""Variables that an opened hub rests on."""

_AUTHOR = "ORTET_AUTHOR"


class Resident:
    """One store's. Commands come one at a time; `rest` is called after each."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self._hub: Hub | None = None
        self._author = ""
        self._rests_on: object = None
        self._kept: dict[str, tuple[Workspace, object]] = {}
        self._alive: dict[str, float] = {}  # machines that live on, and since when

    def begin(self, variables: Mapping[str, str]) -> None:
        """A command comes, from somebody with these variables, which are this process's now."""
        rests_on = ([variables.get(name) for name in _OPENING], _looks(self.store / "config.toml"))
        if self._hub is not None and rests_on != self._rests_on and not self.live():
            self.close()
        self._rests_on = rests_on
        if self._hub is not None:
            self._introduce(self._hub, variables)

    def hub(self, url: str, *, create: bool) -> Hub:
        """Opened at first need."""
        if self._hub is None:
            from ortet.config.environment import open_hub

            given = os.environ.pop(_AUTHOR, None)
            try:
                self._hub = open_hub(url, create=create)
            finally:
                if given is not None:
                    os.environ[_AUTHOR] = given
            self._author = self._hub.author
            self._introduce(self._hub, os.environ)
        return self._hub

    def is_at(self, url: str) -> bool:
        """Whether what is open is the store at this address, which is elsewhere."""
        from ortet.config.store_url import is_elsewhere, same_store

        hub = self._hub
        return hub is not None and is_elsewhere(hub.url) and same_store(hub.url, url)

    def _introduce(self, hub: Hub, variables: Mapping[str, str]) -> None:
        said = os.fsencode(variables.get(_AUTHOR, "")).decode("utf-8", "replace")
        hub.author = said or self._author
        hub.opening = dict(variables)

    def take(self, row: WorkspaceRow) -> Workspace | None:
        """The workspace as it is open, if it is what would be opened now."""
        workspace, seen = self._kept.get(row.name, (None, None))
        if workspace is None or self._hub is None:
            return None
        if workspace.row != row or seen != _looks(row.directory) or not workspace.resume():
            self._drop(row.name)
            return None
        return workspace

    def keep(self, workspace: Workspace) -> Workspace:
        row = workspace.row
        if row.name not in self._kept:
            self._kept[row.name] = workspace, _looks(row.directory)
        return workspace

    def enliven(self, workspace: Workspace) -> None:
        """Its machine lives on after this command, until it is closed."""
        self._alive.setdefault(workspace.name, time.time())
        self.keep(workspace)

    def rest(self) -> None:
        """Give back what others may want: sessions, private machines that do not live on, locks."""
        hub = self._hub
        if hub is None:
            return
        with suppress(OrtetError):
            hub.let_go()
        for workspace in hub.opened():
            if workspace.row.parent in self._alive and workspace.engine == "criu":
                self.enliven(workspace)  # a copy with processes that go on
            if workspace.name in self._alive:
                self.keep(workspace)
            elif workspace.row.files == "private":
                self._kept.pop(workspace.name, None)
                workspace.close()
            elif self._kept.get(workspace.name, (None,))[0] is workspace:
                workspace.rest()
            else:
                workspace.close()
        still = {id(workspace) for workspace in hub.opened()}
        self._kept = {n: kept for n, kept in self._kept.items() if id(kept[0]) in still}
        self._alive = {n: since for n, since in self._alive.items() if n in self._kept}
        remember(self.store, self.live())

    def live(self) -> dict[str, Any]:
        """The machines that live here, by their workspaces' names."""
        return {name: _about(self._kept[name][0], since) for name, since in self._alive.items()}

    def close(self) -> None:
        """Let go of everything."""
        hub, self._hub, self._kept = self._hub, None, {}
        self._alive = {}  # what is remembered of them stays: they can be started again
        if hub is not None:
            hub.close()

    def _drop(self, name: str) -> None:
        workspace, _ = self._kept.pop(name)
        workspace.close()


class ResidentCall(Call):
    """A call whose hub and workspaces stay."""

    resident: Resident

    def __init__(self, resident: Resident) -> None:
        super().__init__()
        self.resident = resident

    def open_hub(self, url: str | None = None, *, create: bool) -> Hub:
        from ortet.config.environment import store_path, store_url
        from ortet.config.store_url import is_elsewhere

        asked = store_url(url, cwd=self.here)
        if is_elsewhere(asked):
            return self._opened_elsewhere(asked, create=create)
        if os.path.realpath(store_path(asked)) != os.path.realpath(self.resident.store):
            return super().open_hub(url, create=create)
        return self.resident.hub(str(self.resident.store), create=create)

    def _opened_elsewhere(self, url: str, *, create: bool) -> Hub:
        """Which store an address means is known when it was opened: the agent's has its place on
        this host."""
        if self.resident.is_at(url):
            return self.resident.hub(url, create=create)
        hub = super().open_hub(url, create=create)
        if os.path.realpath(hub.root) != os.path.realpath(self.resident.store):
            return hub
        return self.resident.hub(url, create=create)

    def opened(self, row: WorkspaceRow) -> Workspace | None:
        return self.resident.take(row) if self.hub.root == self.resident.store else None

    def workspace(self, name: str | None = None, *, writes: bool = True) -> Workspace:
        found = super().workspace(name, writes=writes)
        return self.resident.keep(found) if self.hub.root == self.resident.store else found


def _about(workspace: Workspace, since: float) -> dict[str, Any]:
    door = workspace.door
    return {
        "engine": workspace.engine,
        "pid": door.pid,
        "path": door.path,
        "lock": door.lock,
        "directory": str(workspace.row.directory),
        "since": since,
    }


def _looks(path: Path) -> object:
    """What tells a file or directory from another that was put in its place."""
    try:
        seen = path.stat()
    except OSError:
        return None
    if path.is_dir():
        return seen.st_dev, seen.st_ino
    return seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_size
