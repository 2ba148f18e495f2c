"""The `Hub` class: an open store and its public verbs.

`Hub` itself holds workspaces and history. Its base classes hold the other verbs; see `ortet.hub`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec.structs import replace

from ortet._util.codec import decode
from ortet._util.validation import DICT, TEXT, check_text, optional
from ortet.backends.base import Catalog, Signal
from ortet.errors import Conflict, Invalid, NotFound, Refused, Unavailable
from ortet.history import records
from ortet.history.commits import CommitInfo, History
from ortet.history.diff.tree_diff import TreeChange, diff_images
from ortet.history.refs import Ref, Refs, is_ref_name
from ortet.hub.governance.service import Governance
from ortet.hub.governance.tombstones import replacement_of
from ortet.hub.inbox_api import InboxApi
from ortet.hub.maintenance import Maintenance, Progress
from ortet.hub.memory_queries import MemoryQueries
from ortet.ids import Oid, to_hex, uuid7
from ortet.machines.base import Report
from ortet.store.context import StoreContext
from ortet.store.pin_commit import ref_writer
from ortet.store.sweep_retry import run_with_sweep_retry
from ortet.workspaces.commit_participant import CommitParticipant, NoParticipant
from ortet.workspaces.forks import WorkspaceForksMixin
from ortet.workspaces.machine_homes import MachineHomes
from ortet.workspaces.table import (
    FilesMode,
    RootScope,
    WorkspaceRow,
    WorkspaceTable,
    check_outside_store,
    existing_directory,
    real_path,
)
from ortet.workspaces.workspace import Workspace

if TYPE_CHECKING:
    from ortet.journal.state.records import Effect
    from ortet.machines.secrets.scanner import SecretScanner
    from ortet.sessions.manager import SessionManager
    from ortet.sessions.profiles import ProbePolicy
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.results import UnavailableSecret
    from ortet.sessions.session import Session
    from ortet.sessions.starting import FilesLocation
    from ortet.sessions.swarm_api import SwarmRunner
    from ortet.sessions.table import SessionRow
    from ortet.sessions.writing.event_writer import Durability
    from ortet.vault.vault import Vault


# Verbs of `Hub` that open, list and read sessions, and redact secrets.

_SECRETS_MAX_AGE_NS = 1_000_000_000


class SessionApi:
    """Base class of `Hub` for session verbs. A command about files alone loads no session code."""

    root: Path
    catalog: Catalog
    signal: Signal
    workspace_table: WorkspaceTable
    _store: StoreContext
    _sessions: SessionManager | None = None
    _allows_secrets = False
    _secret_scanner: tuple[list[tuple[str, int]], SecretScanner] | None = None
    _secrets_checked: tuple[int, int] = (
        0,
        0,
    )  # time of the last check, and `_vault_changes` at that time

    def session(
        self,
        name: str,
        *,
        agent: str = "default",
        goal: str = "",
        workspace: str | os.PathLike[str] | None = None,
        files: FilesMode | None = None,
        engine: str = "auto",
        budget: Mapping[str, Any] | None = None,
        durability: Durability | None = None,
        commit: str | Mapping[str, float] | None = None,
        profile: str | None = None,
        parent: SessionReader | str | None = None,
        replay: bool | Literal["live"] = False,
        handover: str | None = None,
        environment: ProbePolicy | None = None,
        limits: Mapping[str, Any] | None = None,
        network: str | None = None,
        scopes: Sequence[str] | None = None,
    ) -> Session:
        """Open a session at its head, or create it. Nothing is executed again.

        The session is leased to this process until it is paused or closed.

        Args:
            name: Name of the session; unique for its agent.
            agent: The agent that the session belongs to.
            goal: Goal of the session.
            workspace: Directory whose files become part of every commit; see `workspace()`.
            files: "inplace" or "private"; see `workspace()`.
            engine: Engine of the machine; see `workspace()`.
            budget: Limits of a new session, such as {"usd": 5.0}. `s.budget(usd=...)` changes them
                later.
            durability: When an event is on disk: "event" (before the verb returns), "group" (within
                milliseconds) or "commit" (with the next commit).
            commit: When the session commits automatically: "manual", "action", "milestone",
                {"minutes": 5} or {"cost": 3.0}.
            profile: Name of a set of policies (docs/profiles.md). `durability`, `commit`,
                `handover` and `environment` override it.
            parent: Session that this one works for. Spending counts against the budget of the
                parent.
            replay: True starts at the first event and returns recorded outcomes. "live" continues
                on a new timeline at the first action that was not recorded.
            handover: Directory in the workspace for handover files, written at each commit. ""
                writes none.
            environment: When the environment is probed: "asked" (only by `s.environment()`), "ends"
                (also when the session is opened and released) or "commit" (also at each commit).
            limits: Limits of the live machine, such as {"memory": "2G", "cpu": 1.5, "pids": 500}.
            network: "none", "outbound", or "host", which also reaches the loopback of this host.
            scopes: Shared memories beside the agent's: "user:NAME", "project:NAME". With a user
                scope, episodes are shared with that user's sessions and not with all sessions of
                the agent.

        Returns:
            The open session. Leaving its `with` block pauses it.

        Raises:
            Refused: kind "lease_held", if another process has the session open.
            Conflict: kind "session_closed", if the session is closed or archived.
            Diverged: In a replay, at the first action that was not recorded.
            Invalid: If an argument is not valid.
        """
        from ortet.sessions.memory.shared_scopes import check_scopes
        from ortet.sessions.profiles import OpenOptions

        optional(DICT, budget=budget, limits=limits)
        optional(TEXT, profile=profile, handover=handover, network=network)
        held = None if limits is None else dict(limits)
        place = self._files_location(workspace, files, engine, limits=held, network=network)
        works_for = "" if parent in (None, "") else self._session_manager().table.resolve(parent)
        chosen = (durability, commit, profile, works_for, replay, handover, environment)
        manner = OpenOptions(*chosen, check_scopes(scopes))
        return self._session_manager().open(
            name, agent=agent, goal=goal, budget=budget, location=place, options=manner
        )

    def _files_location(
        self,
        workspace: str | os.PathLike[str] | None,
        files: FilesMode | None,
        engine: str,
        *,
        limits: dict[str, Any] | None,
        network: str | None,
    ) -> FilesLocation:
        """Return where the session has its files. Raise Invalid if the arguments contradict."""
        from ortet.sessions.starting import FilesLocation

        if workspace is not None:
            directory = check_outside_store(self.root, existing_directory(workspace))
            cast("Hub", self).resolve_files_and_engine(
                engine, files
            )  # raises Invalid if the arguments contradict
            return FilesLocation(os.fspath(directory), engine, files, limits, network)
        if files == "inplace":
            raise Invalid("bad_workspace", "files='inplace' of which directory? give workspace=")
        if engine != "auto" or files is not None:
            cast("Hub", self).resolve_files_and_engine(
                engine, "private" if files is None else files
            )
        return FilesLocation(engine=engine, files=files, limits=limits, network=network)

    def find_workspace_row(
        self, path: str, engine: str, files: FilesMode | None
    ) -> WorkspaceRow | None:
        """Return the workspace row of a directory, or None if it is not a workspace yet."""
        return self.workspace_table.find_at(
            Path(path), *cast("Hub", self).resolve_files_and_engine(engine, files)
        )

    def sessions(self) -> list[SessionRow]:
        """Return the rows of all sessions, oldest first."""
        return self._session_manager().all()

    def get(self, session: str) -> SessionReader:
        """Return a read-only view of a session. It needs no lease.

        Args:
            session: Id, name, or agent/name.

        Raises:
            NotFound: If there is no such session.
        """
        minds = self._session_manager()
        return minds.get(minds.table.resolve(session))

    @cached_property
    def vault(self) -> Vault:
        """Encrypted secrets by name. They are never part of a commit."""
        from ortet.vault.vault import Vault

        parts = self._store
        return Vault(parts.catalog, parts.vault, clock=parts.clock, random=parts.random)

    def known_secrets(self) -> SecretScanner | None:
        """Return a scanner for secrets that no commit may contain, or None.

        The secrets are those of the vault and of the environment. None means that there are none,
        or that `allow_secrets` is active.
        """
        if self._allows_secrets:
            return None
        versions, after = list[tuple[str, int]](), ""
        while page := self.catalog.rows("vault", after):
            versions += [(r.key, r.version) for r in page if not r.key.startswith("browser/")]
            after = page[-1].key
        if self._secret_scanner is None or self._secret_scanner[0] != versions:
            from ortet.vault.redaction import known_secrets

            self._secret_scanner = (
                versions,
                known_secrets(self.vault, versions, self._store.environ),
            )
        self._secrets_checked = self._store.clock.now_ns(), self._vault_changes
        return self._secret_scanner[1] or None

    def redact(self, value: Any) -> Any:
        """Return plain data with every known secret replaced by its name.

        The list of secrets is at most one second old. A secret that another process has just added
        may be missed here. A commit reads the list again.
        """
        when, puts = self._secrets_checked
        if self._allows_secrets:
            return value
        if (
            puts != self._vault_changes
            or not 0 <= self._store.clock.now_ns() - when < _SECRETS_MAX_AGE_NS
        ):
            self.known_secrets()
        known = self._secret_scanner[1] if self._secret_scanner is not None else None
        return known.redact(value) if known else value

    def redact_bytes(self, data: bytes) -> bytes:
        """Return bytes with every known secret replaced by its name. The list is read again."""
        known = self.known_secrets()
        return known.redact_bytes(data) if known else data

    def unrestorable_since(
        self, branch: str, commit: Oid
    ) -> tuple[list[Effect], list[UnavailableSecret]]:
        """Return what a restore of `branch` to `commit` cannot undo or restore.

        Returns:
            Effects on the outside world since the commit, and secrets that the commit refers to and
                that are not available here. Both are empty if no session works on the branch.
        """
        if self.catalog.row("session-branch", branch) is None:
            return [], []
        from ortet.sessions.environment.environments import environment_at_commit
        from ortet.sessions.history.lapsed import effects_since_commit, unavailable_secrets

        minds, hub = self._session_manager(), cast("Hub", self)
        row = minds.table.find_by_branch(branch)
        if row is None:
            return [], []
        secrets = unavailable_secrets(minds, commit, environment_at_commit(minds, commit))
        return effects_since_commit(hub, row, commit), secrets

    @property
    def _vault_changes(self) -> int:
        """Number of changes that this process made to the vault."""
        vault: Vault | None = self.__dict__.get("vault")
        return vault.change_count if vault is not None else 0

    @contextmanager
    def allow_secrets(self, allow: bool) -> Iterator[None]:
        """Within the block, commits may contain secrets if `allow` is True."""
        before, self._allows_secrets = self._allows_secrets, self._allows_secrets or allow
        try:
            yield
        finally:
            self._allows_secrets = before

    @property
    def swarms(self) -> SwarmRunner:
        """Runs swarms and reads those that were run before."""
        return self._store.swarms

    def _session_manager(self) -> SessionManager:
        if self._sessions is None:
            from ortet.sessions.manager import SessionManager

            self._sessions = SessionManager(cast("Hub", self), self._store.host, self._store.encore)
        return self._sessions

    def open_branch_session(self, branch: str) -> Session | None:
        """Open the session that works on a branch, or return None if it is closed or missing."""
        if self.catalog.row("session-branch", branch) is None:
            return None
        row = self._session_manager().table.find_by_branch(branch)
        if row is None or row.status in ("closed", "archived"):
            return None
        return self.session(row.name, agent=row.agent)

    def pause_open_sessions(self, keep_open: Session | None = None) -> None:
        """Pause every session that is open in this hub, so that other processes can open them.

        The hub stays open.

        Args:
            keep_open: A session that is not paused.
        """
        if self._sessions is None:
            return
        if keep_open is None:
            self._sessions.close()
            self._sessions = None
            return
        with ExitStack() as last:  # pauses all sessions even if one fails
            for session in self._sessions._open:
                if session is not keep_open:
                    last.callback(session.pause)

    @property
    def has_open_sessions(self) -> bool:
        """True if this hub has at least one session open."""
        return self._sessions is not None and bool(self._sessions._open)

    def is_open(self, session: str) -> bool:
        """Return True if a live process on any host has the session with this id open."""
        check_text(session=session)
        return self._session_manager().is_leased(session)

    def commit_participant(self, branch: str) -> CommitParticipant:
        """Return the participant that stores session state in commits of a branch.

        A branch without a session gets `NoParticipant`.
        """
        if self.catalog.row("session-branch", branch) is None:
            return NoParticipant()
        return self._session_manager().detached_participant(branch)

    def notify(self, topic: str) -> None:
        """Wake processes that wait for changes of a topic."""
        with suppress(OSError):  # only a hint: the change itself is already stored
            self.signal.notify(topic)


_MAX_NAME_ATTEMPTS = 100
"""Number of attempts to find a free workspace name while other processes take names."""


class Hub(SessionApi, MemoryQueries, WorkspaceForksMixin, Maintenance, Governance, InboxApi):
    """An open store.

    A hub opens sessions and workspaces, reads history and maintains the store. Use it as a context
    manager, or call `close()`. Do not use it in a forked child process; open the store again there.

    Example:
        with ortet.open() as hub, hub.session("fix-42") as s:
            s.say("user", "the login test fails")
    """

    def __init__(self, store: StoreContext) -> None:
        self.url = store.url
        self.root = store.root
        self.catalog = store.catalog
        self.bucket = store.bucket
        self.signal = store.signal
        self.cache = store.cache
        self.objects = store.objects
        self.trees = store.trees
        self.clock = store.clock
        self.author = store.author
        self.random = store.random
        self.history = History(store.objects)
        self.refs = Refs(store.catalog, store.objects, store.objects.find_by_prefix)
        self.refs.run_pinned = ref_writer(self)
        self.workspace_table = WorkspaceTable(store.catalog, store.host)
        self.environ, self.initial_environ = (
            store.environ,
            dict(store.environ),
        )  # live environment, and a copy from when the hub was opened
        self.close_callbacks: list[Callable[[], None]] = []  # called before anything else is closed
        self.allows_lease_handover = (
            False  # True in a server: release a session when another process requests it
        )
        self._store = store
        self._machines = MachineHomes(store.root, store.engine, store.hide)
        self._open_workspaces: list[Workspace] = []
        self._epoch = store.objects.epoch
        store.objects.find_replacement = lambda oid: replacement_of(store.catalog, oid)

    def __repr__(self) -> str:
        # The query part of a URL may contain a password.
        return f"<Hub {self.url.partition('?')[0] if '://' in self.url else self.url}>"

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Pause all sessions, close all workspaces including forks, then close the store.

        Every step runs even if an earlier one fails.
        """
        with ExitStack() as last:  # runs all callbacks even if one fails
            last.callback(self.catalog.close)
            last.callback(self.bucket.close)
            last.callback(self.signal.close)
            last.callback(self.cache.close)
            last.callback(self._close_library)
            last.callback(self._close_objects)
            last.callback(self._machines.close)
            for workspace in self._open_workspaces:
                last.callback(workspace.close)
            if self._sessions is not None:
                last.callback(self._sessions.close)
            for call in self.close_callbacks:
                last.callback(call)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Guard a write: no sweep deletes an object from the first put until the head has moved.

        If the block raises, the objects written in it are abandoned.
        """
        with self.objects.writing() as epoch:
            if epoch != self._epoch:  # a sweep ran since; cached tree pages may be deleted
                self.trees.clear_cache()
                self._epoch = epoch
            self.objects.scanner = self.known_secrets()
            try:
                yield
            except BaseException:
                self.objects.abandon()
                raise

    # workspaces

    def workspace(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        engine: str = "auto",
        files: FilesMode | None = None,
        scope: RootScope | None = None,
        limits: Mapping[str, Any] | None = None,
        network: str | None = None,
    ) -> Workspace:
        """Open a directory as a workspace and continue at its head commit.

        A directory that is opened for the first time becomes a new workspace.

        Args:
            path: The directory. Leave it out to open a known workspace by `name`.
            name: Name of a new workspace. The default is the base name of the directory.
            engine: "folder", "overlay", "criu" or "auto". Forks use a named engine too; with "auto"
                they use the best engine of the host.
            files: "inplace" works in the directory itself. "private" works on a copy and leaves the
                directory untouched until `land`. The engines "overlay" and "criu" are always
                private. The default is "inplace" for the other engines.
            scope: Which directory tree a private machine covers. The default comes from the store
                settings.
            limits: Limits of the live machine, such as {"memory": "2G", "cpu": 1.5, "pids": 500}.
                They are stored for forks and later opens.
            network: "none", "outbound", or "host", which also reaches the loopback of this host. It
                is stored for forks and later opens.

        Returns:
            The open workspace. Leaving its `with` block closes it.

        Raises:
            Invalid: If the directory, name, engine or files mode is not valid.
            Conflict: kind "name_taken", if the directory is a workspace of another name.
            Refused: kind "other_host", if the files are in a directory of another host.
            Unsupported: If this host cannot run the engine.
        """
        if path is None:
            if name is None:
                raise Invalid("bad_workspace", "give a directory, or name=… of one opened before")
            return self._open_workspace(
                self.workspace_table.limit(self.workspace_table.need(name), limits, network)
            )
        directory = check_outside_store(self.root, existing_directory(path))
        mode, chosen = self.resolve_files_and_engine(engine, files)
        forks = "" if engine == "auto" else engine
        row = self.workspace_table.find_at(directory, mode, chosen)
        if row is None:
            best: RootScope = self._store.scope if mode == "private" else "workspace"
            draft = self.workspace_table.draft(directory, mode, chosen)
            draft = replace(draft, scope=scope or best, forks=forks)
            row = self._register(self.workspace_table.limit(draft, limits, network), name)
        if name not in (None, row.name):
            raise Conflict(
                "name_taken",
                f"{directory} is workspace {row.name!r} already: leave the name out to go on",
            )
        row = replace(row, forks=forks or row.forks)
        return self._open_workspace(self.workspace_table.limit(row, limits, network))

    def reopen(self, name: str, directory: Path) -> Workspace:
        """Open the in-place workspace that a pointer file in `directory` names.

        A moved directory keeps its history. A copied directory (the first one still exists) gets a
        history of its own.
        """
        row = self.locate(name, directory)
        if row is not None:
            return self._open_workspace(row)
        # After `drop` the branch still exists; the directory continues on it.
        left = self.refs.get(name) and self.workspace_table.get(name) is None
        return self.workspace(directory, name=name if left else None)

    def locate(self, name: str, directory: Path) -> WorkspaceRow | None:
        """Return the workspace row that `reopen` opens, or None.

        None means that the directory has no history in this store yet. If the directory has moved,
        the row is updated.
        """
        directory = directory.resolve()
        row = self.workspace_table.get(name) if name else None
        if row is None or row.files != "inplace":
            return self.workspace_table.find_at(directory, "inplace", "folder")
        if row.directory == directory:
            return row
        if os.path.lexists(row.directory):  # the original still exists, so this directory is a copy
            return self.workspace_table.find_at(directory, "inplace", "folder")
        return self.workspace_table.move(row, directory)

    @contextmanager
    def inplace_workspace(self, directory: Path) -> Iterator[Workspace]:
        """Yield the in-place workspace of a directory.

        If this hub already has it open, that workspace is used and stays open. Otherwise it is open
        for the block only.
        """
        row = self.workspace_table.find_at(directory, "inplace", "folder")
        if row is not None and (found := self.open_workspaces(row.name)):
            yield found[0]
            return
        with self.workspace(directory) as workspace:
            yield workspace

    @contextmanager
    def private_workspace(self, name: str) -> Iterator[Workspace | None]:
        """Yield the private workspace of this name, or None.

        None means that this host has no private workspace of that name; the name may be a branch,
        tag or commit. A workspace that this hub has open is used and stays open. Otherwise it is
        open for the block only.
        """
        row = self.workspace_table.get(name) if is_ref_name(name) else None
        if row is None or row.files != "private" or row.host != self._store.host:
            yield None
        elif found := self.open_workspaces(name):
            yield found[0]
        else:
            with self._open_exclusively(row) as workspace:
                yield workspace

    @contextmanager
    def _open_exclusively(self, row: WorkspaceRow) -> Iterator[Workspace]:
        try:
            workspace = self._open_workspace(row)
        except Conflict as error:
            if error.kind != "machine_open":
                raise
            raise Conflict(
                error.kind,
                f"{row.name!r} is open in another process, so its uncommitted work cannot be "
                "recorded: close it there first, or give the id of its last commit",
            ) from error
        with workspace:
            yield workspace

    def open_workspaces(self, name: str = "") -> list[Workspace]:
        """Return the workspaces that this hub has open; with `name`, only those of that name."""
        return [workspace for workspace in self._open_workspaces if name in ("", workspace.name)]

    def untrack_workspace(self, workspace: Workspace) -> None:
        """Remove a workspace from the list of open ones. `Workspace.close` calls this."""
        if workspace in self._open_workspaces:
            self._open_workspaces.remove(workspace)

    # history

    def log(self, ref: Ref = "HEAD", *, limit: int | None = None) -> list[CommitInfo]:
        """Return the commits that are reachable from `ref`, newest first.

        Args:
            ref: A branch, tag, commit id or its prefix. "HEAD" is the only branch of the store, if
                it has exactly one.
            limit: Largest number of commits to return.

        Raises:
            NotFound: If the ref does not exist.
        """
        return list(self.history.log(self.refs.resolve(ref), limit=limit))

    def show(self, ref: Ref) -> CommitInfo:
        """Return the commit that `ref` names.

        Raises:
            NotFound: If the ref does not exist.
        """
        return self.history.info(self.refs.resolve(ref))

    def diff(self, old: Ref, new: Ref) -> list[TreeChange]:
        """Compare the files of two commits.

        Returns:
            One entry for each path that was added, removed or changed from `old` to `new`.

        Raises:
            NotFound: If a ref does not exist, or its commit has no files.
        """
        before, after = (self.history.image(self.refs.resolve(ref)) for ref in (old, new))
        return diff_images(self.trees, before, after)

    def restore(
        self, ref: Ref, to: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> Report:
        """Write the workspace files of a commit into a new directory.

        This does not move a branch and does not change a workspace.

        Args:
            ref: A branch, tag or commit.
            to: The new directory. It must be outside the store.
            progress: Called with (done, total) during the work.

        Returns:
            A report with the parts that could not be restored on this host.
        """
        from ortet.machines.restore.checkout import checkout_image

        target = check_outside_store(self.root, real_path(to))
        image = self.history.image(self.refs.resolve(ref))
        return checkout_image(self.objects, self.trees, image, target, progress=progress)

    def image_oid(self, commit: Oid, default: bytes = b"") -> Oid:
        """Return the oid of the machine image in a commit.

        If the commit has no files, return `default`, or raise NotFound("no_files") if `default` is
        empty.
        """
        found = self.history.state(commit).machine or default
        if not found:
            raise NotFound("no_files", f"commit {to_hex(commit)[:12]} holds no files")
        return Oid(found)

    def read_image(self, oid: Oid) -> records.Image:
        """Read an image record from the object store."""
        return decode(records.Image, self.objects.get(oid))

    # internal

    @property
    def default_scope(self) -> RootScope:
        """Directory tree that private machines cover by default."""
        return self._store.scope

    def check_engine(self, engine: str) -> None:
        """Raise Unsupported if this host cannot run the engine."""
        self._machines.check(engine)

    def resolve_files_and_engine(
        self, engine: str, files: FilesMode | None
    ) -> tuple[FilesMode, str]:
        """Return the files mode and the engine name that the two arguments mean.

        Raises Invalid if they contradict each other or the engine is unknown.
        """
        check_text(engine=engine)
        if files not in (None, "inplace", "private"):
            raise Invalid("bad_workspace", f"files={files!r}: give 'inplace' or 'private'")
        if files == "inplace" and engine in ("overlay", "criu"):
            raise Invalid("bad_workspace", f"engine={engine!r} is private: leave files= out")
        private = files == "private" or engine in ("overlay", "criu")
        mode: FilesMode = "private" if private else "inplace"
        if engine == "auto":
            engine = self._store.strongest() if mode == "private" else "folder"
        self._store.engine(engine)  # raises Invalid if the engine is unknown
        return mode, engine

    def _register(self, draft: WorkspaceRow, name: str | None) -> WorkspaceRow:
        """Insert a workspace row for a directory, or return the row of a concurrent process."""
        self._machines.check(draft.engine)  # fail before anything is stored
        return run_with_sweep_retry(self, lambda: self._registered(draft, name))

    def _registered(self, draft: WorkspaceRow, name: str | None) -> WorkspaceRow:
        with self.writing():  # no sweep may delete the base image before the row refers to it
            if draft.files == "private":
                draft = replace(draft, base=self._machines.capture_directory(draft, self.new_id()))
                self.objects.flush()
            draft = replace(draft, machine=self.new_id())
            for _ in range(_MAX_NAME_ATTEMPTS):
                registry = self.workspace_table
                free = registry.free_name(draft) if name is None else registry.claim(name, draft)
                try:
                    return registry.add(replace(draft, name=free))
                except Conflict as error:
                    if name is not None or error.kind == "swept":
                        raise
                    taken = error
            raise taken

    def _open_workspace(self, row: WorkspaceRow) -> Workspace:
        if row.files == "inplace" or row.engine == "folder":
            self.check_local_host(row.name, row.host)
        elif self.url != str(self.root):
            return self._open_shared_workspace(row)
        return self._open_local_workspace(row)

    def _open_shared_workspace(self, row: WorkspaceRow) -> Workspace:
        """Open a private workspace that another host of the shared store may have had open."""
        # imported here: only shared stores need it
        from ortet.sessions.history.cross_host_files import (
            recover_former_files,
            take_over_workspace,
        )

        workspace = self._open_local_workspace(take_over_workspace(self, row))
        try:
            recover_former_files(workspace)
        except BaseException:
            workspace.close()
            raise
        return workspace

    def _open_local_workspace(self, row: WorkspaceRow) -> Workspace:
        live = self._machines.open(row, lambda: self._initial_image(row))
        try:
            return self._track_workspace(Workspace(self, row, live)).recover_interrupted_restore()
        except BaseException:
            live.close()
            raise

    def is_local_host(self, host: str) -> bool:
        """Return True if a recorded host name means this host.

        Some sessions of earlier releases have no host name. They count as local.
        """
        return host in ("", self._store.host)

    def check_local_host(self, name: str, host: str) -> None:
        """Raise Refused("other_host") if a directory belongs to another host of a shared store.

        The same path on two hosts is not the same directory. A server opens workspaces by name, and
        a shared store knows the directories of all hosts. A store on the local disk moves together
        with its directories, for example into a container with another host name. It is not
        checked.
        """
        shared = self.allows_lease_handover or self.url != str(self.root)
        if shared and not self.is_local_host(host):
            raise Refused(
                "other_host",
                f"the files of {name!r} are in a directory of another host: work on it there, "
                "fork it from a commit, or give workspace= to go on in the directory of this host",
            )

    def _initial_image(self, row: WorkspaceRow) -> Oid | None:
        self.workspace_table.need(row.name)
        if row.files == "inplace":
            return None
        head = self.catalog.head(f"branch:{row.name}")
        return self.image_oid(head.oid, row.empty_image) if head else Oid(row.base)

    def _track_workspace(self, workspace: Workspace) -> Workspace:
        self._open_workspaces.append(workspace)
        return workspace

    def _close_objects(self) -> None:
        # Every commit has flushed its objects. Objects that cannot be written now belong to no
        # commit.
        with suppress(Refused, Unavailable):
            self.objects.close()

    def new_id(self) -> str:
        """Return a new time-ordered unique id."""
        return uuid7(self.clock, self._store.random)
