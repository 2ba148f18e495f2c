"""Verbs of `Hub` that open, list and read sessions, and redact secrets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from ortet._util.validation import DICT, TEXT, check_text, optional
from ortet.backends.base import Catalog, Signal
from ortet.errors import Invalid
from ortet.store.context import StoreContext
from ortet.workspaces.commit_participant import CommitParticipant, NoParticipant
from ortet.workspaces.places import check_outside_store, existing_directory
from ortet.workspaces.table import FilesMode, WorkspaceRow, WorkspaceTable

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.ids import Oid
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
