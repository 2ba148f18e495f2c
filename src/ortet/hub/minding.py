"""What a hub does with sessions: open, list, read, and find the mind that goes with files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from ortet._util.validation import DICT, TEXT, check_text, may_be
from ortet.backends.base import Catalog, Signal
from ortet.errors import Invalid
from ortet.store.context import Parts
from ortet.workspaces.commit_participant import Company, Nobody
from ortet.workspaces.places import existing, keep_apart
from ortet.workspaces.table import Files, Registry, WorkspaceRow

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.ids import Oid
    from ortet.journal.state.records import Effect
    from ortet.machines.secrets.scanner import Known
    from ortet.sessions.manager import Sessions
    from ortet.sessions.profiles import Look
    from ortet.sessions.reader import View
    from ortet.sessions.results import Lapsed
    from ortet.sessions.session import Session
    from ortet.sessions.starting import Place
    from ortet.sessions.swarm_api import Swarms
    from ortet.sessions.table import SessionRow
    from ortet.sessions.writing.event_writer import Durability
    from ortet.vault.vault import Vault

_SOON = 1_000_000_000


class Minding:
    """The half of Hub that deals with minds. A command about files alone loads nothing of it."""

    root: Path
    catalog: Catalog
    signal: Signal
    registry: Registry
    _parts: Parts
    _sessions: Sessions | None = None
    _allowing = False
    _known: tuple[list[tuple[str, int]], Known] | None = None
    _looked: tuple[int, int] = (0, 0)  # when, and how often the vault had been changed then

    def session(
        self,
        name: str,
        *,
        agent: str = "default",
        goal: str = "",
        workspace: str | os.PathLike[str] | None = None,
        files: Files | None = None,
        engine: str = "auto",
        budget: Mapping[str, Any] | None = None,
        durability: Durability | None = None,
        commit: str | Mapping[str, float] | None = None,
        profile: str | None = None,
        parent: View | str | None = None,
        replay: bool | Literal["live"] = False,
        handover: str | None = None,
        environment: Look | None = None,
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
        from ortet.sessions.profiles import Manner

        may_be(DICT, budget=budget, limits=limits)
        may_be(TEXT, profile=profile, handover=handover, network=network)
        held = None if limits is None else dict(limits)
        place = self._place(workspace, files, engine, limits=held, network=network)
        works_for = "" if parent in (None, "") else self._minds().roll.meant(parent)
        chosen = (durability, commit, profile, works_for, replay, handover, environment)
        manner = Manner(*chosen, check_scopes(scopes))
        return self._minds().open(
            name, agent=agent, goal=goal, budget=budget, place=place, manner=manner
        )

    def _place(
        self,
        workspace: str | os.PathLike[str] | None,
        files: Files | None,
        engine: str,
        *,
        limits: dict[str, Any] | None,
        network: str | None,
    ) -> Place:
        """Where a session has its files; Invalid for what cannot be."""
        from ortet.sessions.starting import Place

        if workspace is not None:
            directory = keep_apart(self.root, existing(workspace))
            cast("Hub", self).how(engine, files)  # which refuses what cannot be
            return Place(os.fspath(directory), engine, files, limits, network)
        if files == "inplace":
            raise Invalid("bad_workspace", "files='inplace' of which directory? give workspace=")
        if engine != "auto" or files is not None:
            cast("Hub", self).how(engine, "private" if files is None else files)
        return Place(engine=engine, files=files, limits=limits, network=network)

    def row_at(self, path: str, engine: str, files: Files | None) -> WorkspaceRow | None:
        """The workspace of a directory, if it is one already."""
        return self.registry.at(Path(path), *cast("Hub", self).how(engine, files))

    def sessions(self) -> list[SessionRow]:
        """All of them, oldest first."""
        return self._minds().all()

    def get(self, session: str) -> View:
        """A session to read, by id, name or agent/name, without a lease."""
        minds = self._minds()
        return minds.get(minds.roll.meant(session))

    @cached_property
    def vault(self) -> Vault:
        """Secrets by name, encrypted, outside of every commit."""
        from ortet.vault.vault import Vault

        parts = self._parts
        return Vault(parts.catalog, parts.vault, clock=parts.clock, random=parts.random)

    def known_secrets(self) -> Known | None:
        """What no commit may hold: the vault's secrets, and those in the environment. None where
        there are none, or one is allowed to be stored."""
        if self._allowing:
            return None
        versions, after = list[tuple[str, int]](), ""
        while page := self.catalog.rows("vault", after):
            versions += [(r.key, r.version) for r in page if not r.key.startswith("browser/")]
            after = page[-1].key
        if self._known is None or self._known[0] != versions:
            from ortet.vault.redaction import known_secrets

            self._known = versions, known_secrets(self.vault, versions, self._parts.environ)
        self._looked = self._parts.clock.now_ns(), self._puts
        return self._known[1] or None

    def hidden(self, value: Any) -> Any:
        """Plain data as it may be recorded: names stand for secrets. What another process has just
        put into the vault may take a second to be known; a commit looks anew."""
        when, puts = self._looked
        if self._allowing:
            return value
        if puts != self._puts or not 0 <= self._parts.clock.now_ns() - when < _SOON:
            self.known_secrets()
        known = self._known[1] if self._known is not None else None
        return known.hidden(value) if known else value

    def without_secrets(self, data: bytes) -> bytes:
        """The same of bytes."""
        known = self.known_secrets()
        return known.bytes_without(data) if known else data

    def since(self, branch: str, commit: Oid) -> tuple[list[Effect], list[Lapsed]]:
        """What going to a commit does not undo and cannot give back, of the session that works on a
        branch: deeds done since, and secrets that it refers to and that are not to be had here."""
        if self.catalog.row("session-branch", branch) is None:
            return [], []
        from ortet.sessions.environment.environments import recorded_in
        from ortet.sessions.history.lapsed import deeds_since, lapsed

        minds, hub = self._minds(), cast("Hub", self)
        row = minds.roll.of_branch(branch)
        if row is None:
            return [], []
        secrets = lapsed(minds, commit, recorded_in(minds, commit))
        return deeds_since(hub, row, commit), secrets

    @property
    def _puts(self) -> int:
        """How often this process has changed the vault."""
        vault: Vault | None = self.__dict__.get("vault")
        return vault.changes if vault is not None else 0

    @contextmanager
    def allowing(self, allow: bool) -> Iterator[None]:
        """During the block a commit may hold secrets."""
        before, self._allowing = self._allowing, self._allowing or allow
        try:
            yield
        finally:
            self._allowing = before

    @property
    def swarms(self) -> Swarms:
        """Runs swarms, and knows those that were."""
        return self._parts.swarms

    def _minds(self) -> Sessions:
        if self._sessions is None:
            from ortet.sessions.manager import Sessions

            self._sessions = Sessions(cast("Hub", self), self._parts.host, self._parts.encore)
        return self._sessions

    def session_of(self, branch: str) -> Session | None:
        """The session that works on a branch, opened; None where there is none any more."""
        if self.catalog.row("session-branch", branch) is None:
            return None
        row = self._minds().roll.of_branch(branch)
        if row is None or row.status in ("closed", "archived"):
            return None
        return self.session(row.name, agent=row.agent)

    def let_go(self, but: Session | None = None) -> None:
        """Pause every session that is open here, or all but one, for whoever wants it; the hub
        stays open."""
        if self._sessions is None:
            return
        if but is None:
            self._sessions.close()
            self._sessions = None
            return
        with ExitStack() as last:  # which goes on when one of them fails
            for session in self._sessions._open:
                if session is not but:
                    last.callback(session.pause)

    @property
    def has_open_sessions(self) -> bool:
        return self._sessions is not None and bool(self._sessions._open)

    def is_open(self, session: str) -> bool:
        """Whether a living process, here or elsewhere, has the session of this id open."""
        check_text(session=session)
        return self._minds().is_held(session)

    def company(self, branch: str) -> Company:
        """The mind that goes with the files of a branch."""
        if self.catalog.row("session-branch", branch) is None:
            return Nobody()
        return self._minds().guest(branch)

    def tell(self, topic: str) -> None:
        """Wake whoever waits for news of this."""
        with suppress(OSError):  # a hint, and the deed is done
            self.signal.notify(topic)
