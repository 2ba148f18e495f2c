"""What a hub does with sessions: open, list, read, and find the mind that goes with files."""

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
    """The half of Hub that deals with minds. A command about files alone loads nothing of it."""

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
    )  # when, and how often the vault had been changed then

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
        """Go on with a session at its head, or begin one of this name; nothing re-executes.

        With `workspace`, its commits hold that directory's files too; see `workspace()`. A session
        that works for another, its `parent`, spends inside that one's budget. `budget` is for a new
        one: `s.budget(usd=…)` changes it. `profile` names a set of policies (docs/profiles.md),
        `durability`, `commit`, `handover` (a directory of the workspace for handover files, written
        at each commit) and `environment` (when its surroundings are looked at) go before it.

        With `replay` it starts at the first event: each step gets what it got then, and the first
        that was not recorded is Diverged, or with "live" goes on from there on a new timeline.

        `limits` ({"memory": "2G", "cpu": 1.5, "pids": 500}) and `network` ("none", "outbound",
        or "host": also what listens on this host's loopback) are those of its live machine.

        `scopes` are memories that it shares beside its agent's: "user:NAME", "project:NAME". With
        one user's, what happens in it is told to that user's sessions, not to all of its agent.
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
        """Where a session has its files; Invalid for what cannot be."""
        from ortet.sessions.starting import FilesLocation

        if workspace is not None:
            directory = check_outside_store(self.root, existing_directory(workspace))
            cast("Hub", self).resolve_files_and_engine(
                engine, files
            )  # which refuses what cannot be
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
        """The workspace of a directory, if it is one already."""
        return self.workspace_table.find_at(
            Path(path), *cast("Hub", self).resolve_files_and_engine(engine, files)
        )

    def sessions(self) -> list[SessionRow]:
        """All of them, oldest first."""
        return self._session_manager().all()

    def get(self, session: str) -> SessionReader:
        """A session to read, by id, name or agent/name, without a lease."""
        minds = self._session_manager()
        return minds.get(minds.table.resolve(session))

    @cached_property
    def vault(self) -> Vault:
        """Secrets by name, encrypted, outside of every commit."""
        from ortet.vault.vault import Vault

        parts = self._store
        return Vault(parts.catalog, parts.vault, clock=parts.clock, random=parts.random)

    def known_secrets(self) -> SecretScanner | None:
        """What no commit may hold: the vault's secrets, and those in the environment. None where
        there are none, or one is allowed to be stored."""
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
        """Plain data as it may be recorded: names stand for secrets. What another process has just
        put into the vault may take a second to be known; a commit looks anew."""
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
        """The same of bytes."""
        known = self.known_secrets()
        return known.redact_bytes(data) if known else data

    def unrestorable_since(
        self, branch: str, commit: Oid
    ) -> tuple[list[Effect], list[UnavailableSecret]]:
        """What going to a commit does not undo and cannot give back, of the session that works on a
        branch: deeds done since, and secrets that it refers to and that are not to be had here."""
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
        """How often this process has changed the vault."""
        vault: Vault | None = self.__dict__.get("vault")
        return vault.change_count if vault is not None else 0

    @contextmanager
    def allow_secrets(self, allow: bool) -> Iterator[None]:
        """During the block a commit may hold secrets."""
        before, self._allows_secrets = self._allows_secrets, self._allows_secrets or allow
        try:
            yield
        finally:
            self._allows_secrets = before

    @property
    def swarms(self) -> SwarmRunner:
        """Runs swarms, and knows those that were."""
        return self._store.swarms

    def _session_manager(self) -> SessionManager:
        if self._sessions is None:
            from ortet.sessions.manager import SessionManager

            self._sessions = SessionManager(cast("Hub", self), self._store.host, self._store.encore)
        return self._sessions

    def open_branch_session(self, branch: str) -> Session | None:
        """The session that works on a branch, opened; None where there is none any more."""
        if self.catalog.row("session-branch", branch) is None:
            return None
        row = self._session_manager().table.find_by_branch(branch)
        if row is None or row.status in ("closed", "archived"):
            return None
        return self.session(row.name, agent=row.agent)

    def pause_open_sessions(self, keep_open: Session | None = None) -> None:
        """Pause every session that is open here, or all but one, for whoever wants it; the hub
        stays open."""
        if self._sessions is None:
            return
        if keep_open is None:
            self._sessions.close()
            self._sessions = None
            return
        with ExitStack() as last:  # which goes on when one of them fails
            for session in self._sessions._open:
                if session is not keep_open:
                    last.callback(session.pause)

    @property
    def has_open_sessions(self) -> bool:
        return self._sessions is not None and bool(self._sessions._open)

    def is_open(self, session: str) -> bool:
        """Whether a living process, here or elsewhere, has the session of this id open."""
        check_text(session=session)
        return self._session_manager().is_leased(session)

    def commit_participant(self, branch: str) -> CommitParticipant:
        """The mind that goes with the files of a branch."""
        if self.catalog.row("session-branch", branch) is None:
            return NoParticipant()
        return self._session_manager().detached_participant(branch)

    def notify(self, topic: str) -> None:
        """Wake whoever waits for news of this."""
        with suppress(OSError):  # a hint, and the deed is done
            self.signal.notify(topic)
