"""Keeps the hub and workspaces of a host-agent worker open between commands."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortet.cli.daemon.live_machines import record_machines
from ortet.errors import OrtetError

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.workspaces.table import WorkspaceRow
    from ortet.workspaces.workspace import Workspace

_HUB_VARIABLES = ("HOME", "XDG_CONFIG_HOME", "ORTET_CRIU", "ORTET_VAULT_KEY")
"""Environment variables that affect an open hub."""

_AUTHOR = "ORTET_AUTHOR"


class DaemonCache:
    """The open hub and workspaces of one store. Commands run one at a time.

    `begin_command` is called before each command and `end_command` after it.
    """

    def __init__(self, store: Path) -> None:
        self.store = store
        self._hub: Hub | None = None
        self._author = ""
        self._hub_settings: object = None
        self._workspaces: dict[str, tuple[Workspace, object]] = {}
        # Workspaces with a live machine, and its start time.
        self._live_since: dict[str, float] = {}

    def begin_command(self, variables: Mapping[str, str]) -> None:
        """Prepare for a command whose caller has these variables, which are already set.

        If a setting of the hub changed, close the hub, unless a live machine needs it.
        """
        rests_on = (
            [variables.get(name) for name in _HUB_VARIABLES],
            _file_identity(self.store / "config.toml"),
        )
        if self._hub is not None and rests_on != self._hub_settings and not self.live_machines():
            self.close()
        self._hub_settings = rests_on
        if self._hub is not None:
            self._set_caller(self._hub, variables)

    def hub(self, url: str, *, create: bool) -> Hub:
        """Return the hub, opened at first use."""
        if self._hub is None:
            from ortet.config.environment import open_hub

            author = os.environ.pop(_AUTHOR, None)
            try:
                self._hub = open_hub(url, create=create)
            finally:
                if author is not None:
                    os.environ[_AUTHOR] = author
            self._author = self._hub.store.author
            self._set_caller(self._hub, os.environ)
        return self._hub

    def open(self, url: str | None, *, cwd: Path, create: bool) -> AbstractContextManager[Hub]:
        """Return the open hub if the URL names its store. Otherwise open another hub.

        The context manager closes only another hub.
        """
        from ortet.config.environment import open_hub, store_path, store_url
        from ortet.config.store_url import is_networked

        requested = store_url(url, cwd=cwd)
        if is_networked(requested):
            return self._open_remote(requested, cwd=cwd, create=create)
        if os.path.realpath(store_path(requested)) != os.path.realpath(self.store):
            return open_hub(url, cwd=cwd, create=create, one_shot=True)
        return nullcontext(self.hub(str(self.store), create=create))

    def _open_remote(self, url: str, *, cwd: Path, create: bool) -> AbstractContextManager[Hub]:
        """Return the open hub if this URL is its store.

        Only an opened hub shows which store a URL means, by its directory on this host.
        """
        from ortet.config.environment import open_hub

        if not self._is_open_at(url):
            hub = open_hub(url, cwd=cwd, create=create, one_shot=True)
            if os.path.realpath(hub.root) != os.path.realpath(self.store):
                return hub
            hub.close()
        return nullcontext(self.hub(url, create=create))

    def _is_open_at(self, url: str) -> bool:
        """Return True if the open hub is the remote store at this URL."""
        from ortet.config.store_url import is_networked, is_same_store

        hub = self._hub
        return hub is not None and is_networked(hub.url) and is_same_store(hub.url, url)

    def _set_caller(self, hub: Hub, variables: Mapping[str, str]) -> None:
        author = os.fsencode(variables.get(_AUTHOR, "")).decode("utf-8", "replace")
        hub.store.author = author or self._author
        hub.store.initial_environ = dict(variables)

    def cached_workspace(self, row: WorkspaceRow) -> Workspace | None:
        """Return the open workspace of this row, if it is still valid."""
        workspace, seen = self._workspaces.get(row.name, (None, None))
        if workspace is None or self._hub is None:
            return None
        if workspace.row != row or seen != _file_identity(row.directory) or not workspace.resume():
            self._close_workspace(row.name)
            return None
        return workspace

    def keep_workspace(self, workspace: Workspace) -> Workspace:
        """Keep a workspace open after this command."""
        row = workspace.row
        if row.name not in self._workspaces:
            self._workspaces[row.name] = workspace, _file_identity(row.directory)
        return workspace

    def keep_machine_alive(self, workspace: Workspace) -> None:
        """Keep the workspace's machine alive after this command, until it is closed."""
        self._live_since.setdefault(workspace.name, time.time())
        self.keep_workspace(workspace)

    def end_command(self) -> None:
        """Release what other processes may need: sessions, locks, machines that are not live."""
        hub = self._hub
        if hub is None:
            return
        with suppress(OrtetError):
            hub.internals.pause_open_sessions()
        for workspace in hub.workspaces.find_open():
            if workspace.row.parent in self._live_since and workspace.engine == "criu":
                self.keep_machine_alive(workspace)  # a fork whose processes keep running
            if workspace.name in self._live_since:
                self.keep_workspace(workspace)
            elif workspace.row.files == "private":
                self._workspaces.pop(workspace.name, None)
                workspace.close()
            elif self._workspaces.get(workspace.name, (None,))[0] is workspace:
                workspace.suspend()
            else:
                workspace.close()
        still = {id(workspace) for workspace in hub.workspaces.find_open()}
        self._workspaces = {n: kept for n, kept in self._workspaces.items() if id(kept[0]) in still}
        self._live_since = {
            n: since for n, since in self._live_since.items() if n in self._workspaces
        }
        record_machines(self.store, self.live_machines())

    def live_machines(self) -> dict[str, Any]:
        """Return the live machines by workspace name."""
        return {
            name: _machine_data(self._workspaces[name][0], since)
            for name, since in self._live_since.items()
        }

    def close(self) -> None:
        """Close the hub and all workspaces."""
        hub, self._hub, self._workspaces = self._hub, None, {}
        self._live_since = {}  # their records stay, so that they can be started again
        if hub is not None:
            hub.close()

    def _close_workspace(self, name: str) -> None:
        workspace, _ = self._workspaces.pop(name)
        workspace.close()


def _machine_data(workspace: Workspace, since: float) -> dict[str, Any]:
    control = workspace.control_socket
    return {
        "engine": workspace.engine,
        "pid": control.pid,
        "path": control.path,
        "lock": control.lock,
        "directory": str(workspace.row.directory),
        "since": since,
    }


def _file_identity(path: Path) -> object:
    """Return a value that changes if the file or directory is replaced."""
    try:
        seen = path.stat()
    except OSError:
        return None
    if path.is_dir():
        return seen.st_dev, seen.st_ino
    return seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_size
