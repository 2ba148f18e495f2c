"""A session: an agent's mind, open for writing. Each verb is one event, durable by its policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.failpoints import reach
from ortet._util.validation import check_text
from ortet.errors import Corrupt, Invalid, Refused
from ortet.journal.conversation.tool_calls import lost
from ortet.journal.events import Draft, Event
from ortet.machines.base import Command, Result
from ortet.sessions.actions.budget import Budget
from ortet.sessions.actions.effects import Deeds
from ortet.sessions.history.commit import Branch
from ortet.sessions.history.host import Host
from ortet.sessions.history.participants import Standing, behind, going, is_quiet
from ortet.sessions.machine.inside import Inside
from ortet.sessions.memory.episodes import episode_data, told_before
from ortet.sessions.profiles import Profile
from ortet.sessions.results import recalled, recorded
from ortet.sessions.table import ACTIVE, CLOSED, PAUSED, ROOM, Roll, SessionRow, check_move
from ortet.sessions.writing.auto_commit import Pace
from ortet.sessions.writing.event_writer import Ledger
from ortet.sessions.writing.idempotent_turns import noted
from ortet.sessions.writing.inbox import Inbox
from ortet.sessions.writing.state_cache import keep_ledger
from ortet.store.lease import Holding

if TYPE_CHECKING:
    from ortet.backends.base import RowChange
    from ortet.hub.governance.archive import Archived
    from ortet.sessions.actions.actions import Replay, Scope
    from ortet.sessions.manager import Sessions
    from ortet.workspaces.workspace import Workspace


class Session(Inside):
    """Opened and leased. Leaving the `with` block pauses it."""

    def __init__(
        self,
        sessions: Sessions,
        row: SessionRow,
        *,
        ledger: Ledger,
        branch: Branch,
        holding: Holding,
        where: Standing,
        profile: Profile,
        host: str,
    ) -> None:
        super().__init__(sessions.hub, row, ledger.line, ledger.mind)
        self._sessions = sessions
        self._ledger = ledger
        self._branch = branch
        self.holding = holding
        self._image = where.machine  # of the head: the files of a session that has none open
        self._epoch = where.epoch
        self._files: Workspace | None = None
        self._deeds = Deeds(sessions.hub, row, ledger)
        self._inbox = Inbox(sessions.hub.catalog, row.id, ledger)
        self._budget = Budget(sessions.hub, row, ledger, host=host)
        self.profile = profile
        self._note_ttl = profile.note_ttl
        new = behind(ledger.line) if ledger.tip.seq > ledger.line.base.seq else iter(())
        news = (e for e in new if not is_quiet(e))
        first = next(news, None)
        self._pace = Pace(profile.commit, self._now())
        if first is not None and profile.commit.when != "manual":  # else nobody has to read them
            self._pace.take_up([first, *news])
        self._host = Host(
            sessions,
            row,
            ledger,
            lease=lambda: holding.lease,
            moved=self._arrived,
            variables=self._given,
            dirty=first is not None,
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()

    def __repr__(self) -> str:
        return (
            f"<Session {self.name!r} of {self.agent}, {self.status}, {self._ledger.tip.seq} events>"
        )

    # what it does

    def act(
        self,
        function: Callable[..., Any],
        *args: Any,
        why: str = "",
        replay: Replay | None = None,
        key: str | None = None,
        scope: Scope | None = None,
        name: str | None = None,
        approve: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a function: the intent is durable before, the outcome after, and with a key the deed
        is done once in all forks.

        With `approve`, the reason to show a human, it waits for `hub.approve`: until then each call
        is Refused("approval_pending"), here or in the next process.
        """
        with self._acting():
            return self._deeds.act(
                function,
                args,
                kwargs,
                why=why,
                replay=replay,
                key=key,
                scope=scope,
                name=name,
                approve=approve,
            )

    def request_approval(self, what: str, *, why: str = "") -> str:
        """Ask a human to allow something; returns the id. `s.approvals()` has the answer."""
        self._live()
        self._host.dirty = True
        return self._deeds.approvals.ask(what, why=why)

    # what it did

    def events(self, after: int = 0, upto: int | None = None) -> Iterator[Event]:
        self._ledger.flush()
        return super().events(after, upto)

    def _settle(self) -> None:
        self._ledger.flush()

    # in its machine

    @property
    def machine(self) -> Workspace:
        """The files and processes of this session; started at first use.

        One that has no directory gets private files of its own then, empty at first.
        """
        self._live()
        return self._workspace() or self._move_in()

    @property
    def opened_files(self) -> Workspace | None:
        """The same if it was used since the session was opened; starts nothing."""
        return self._files

    @property
    def path(self) -> Path:
        """Where the host can read its files."""
        return self.machine.path

    def run(
        self,
        command: Command,
        *,
        why: str = "",
        replay: Replay | None = None,
        key: str | None = None,
        scope: Scope | None = None,
        **options: Any,
    ) -> Result:
        """Run a command in the machine; its output and exit code are the action's outcome, and with
        a key it runs once in all forks."""
        from ortet.machines.command import check_run

        check_run(command, **options)
        said = command if isinstance(command, str) else list(command)
        with self._acting():
            if not key:
                self._get_ready()
            result: Result = self._deeds.act(
                self._run_here,
                (said,),
                options,
                why=why,
                replay=replay,
                key=key,
                scope=scope,
                name="run",
                record=lambda result: recorded(self._redacted(result, options)),
                recall=recalled,
            )
        return result

    def _get_ready(self) -> None:
        """Killed while the machine starts, no command was begun."""
        _ = self.machine

    def _redacted(self, result: Result, options: Mapping[str, Any]) -> Result:
        if not options.get("secrets"):
            return result
        from ortet.vault.redaction import redacted

        values: dict[str, str] = self.machine.secrets_of(options["secrets"])
        return redacted(result, values)

    def _run_here(self, command: Command, **options: Any) -> Result:
        return self.machine.run(command, **options)

    def _workspace(self) -> Workspace | None:
        if self._files is None and self._row.has_files:
            self.use(self._sessions.files_of(self._row))
        return self._files

    def _move_in(self) -> Workspace:
        files = self._sessions.files_of(self._row)
        reach("room.before-session")
        row = msgspec.structs.replace(self._row, files=ROOM)
        rows = [Roll.changed(row)]
        self._hub.catalog.move(
            [], verb="room", actor=self._hub.author, lease=self.holding.lease, rows=rows
        )
        self._row = self._host.row = row
        self.use(files)
        return files

    def use(self, files: Workspace) -> None:
        """These are its files: they are committed and restored with its mind."""
        self._files = files
        files.company, files.generated = self._host, self.generated
        _ = self._own  # what this process changes from now on is a change

    # its life

    def pause(self, why: str = "") -> None:
        """Let go of it: another process, here or elsewhere, may go on."""
        self._end(PAUSED, why)

    def close(self, why: str = "") -> None:
        """It is done: its name stays taken, and it can be read and archived. Where its profile says
        `audit`, the chain is verified before: Corrupt, and it stays as it was."""
        self._check_chain()
        self._end(CLOSED, why)

    def _end(self, status: str, why: str) -> None:
        check_text(why=why)
        if self.holding.ended:
            return
        try:
            self._take_in()
            self._look_at_the_end()
            if self._pace.policy.at_the_end and self._pace.tally.since:
                self._commit_by_itself()
            self._budget.settle()
            if status == CLOSED:
                self._tell_story(why)
            if status != self.status:  # one that is lent is paused already
                self._turn(status, why)
            self._hand_on()
            if status == CLOSED:
                self._publish(self._ledger.tip.seq)
        except Refused:
            pass  # another process has taken over: it is no longer ours to pause
        finally:
            self.give_up()

    def _tell_story(self, why: str) -> None:
        """The last episode: what happened since the one before."""
        with suppress(Corrupt):  # an event that is damaged, which `verify` tells, keeps none open
            events = self.events(told_before(self))
            told = episode_data(self, self._new_id(), cause="closed", events=events, outcome=why)
            if told is not None:
                self._ledger.add(self._draft("episode", told))

    def archive(self, why: str = "") -> Archived:
        """Let go of it and put it away in one bundle; `hub.unarchive` brings it back."""
        self.pause(why)
        return self._hub.archive(self.id, why)

    def turn_to(self, status: str, why: str, *, rows: Sequence[RowChange]) -> None:
        """Another state, written together with these rows."""
        self._turn(status, why, rows)

    def take_in(self) -> None:
        """What others left for it, into the journal."""
        self._take_in()

    def let_go(self) -> None:
        """Give the lease back and leave the state as it is."""
        try:
            self._hand_on()
        finally:
            self.give_up()

    def _hand_on(self) -> None:
        """All of it is durable, and at hand for whoever goes on."""
        self._ledger.close()
        keep_ledger(self._sessions, self._ledger, self._epoch)

    def give_up(self) -> None:
        """The same for one that could not be opened: what is not durable yet is not recorded."""
        self._ledger.drop()
        self._sessions.give_back(self)
        if self._files is not None:
            self._files.close()

    def _turn(self, status: str, why: str, rows: Sequence[RowChange] = ()) -> None:
        check_move(self.name, self.status, status)
        row = msgspec.structs.replace(self._row, status=status)
        data = {"from": self.status, "to": status, "why": why}
        self._ledger.add(self._draft("lifecycle", data), rows=[Roll.changed(row), *rows])
        self._row = self._host.row = row

    def whatif(self, at: int, *, machine: bool = True, **change: Any) -> Session:
        """Another session, as if event `at` had had this `message`, `result` or `error`."""
        from ortet.sessions.history.whatif import whatif

        self._live()
        self._ledger.flush()
        return whatif(self._sessions, self, at, machine=machine, **change)

    def tie_up(self) -> None:
        """Every action that was begun has an end."""
        self._deeds.close_dangling()

    def close_calls(self) -> None:
        """Every tool call has a result: else a model API would refuse the conversation."""
        if calling := self._mind.core.calling:
            self._host.dirty = True
            self._ledger.add(*(lost(call, self._hub.author) for call in calling))

    def begin(self, alive: int = 0) -> None:
        """It is being worked on, by this process. `alive`: until when the one before surely was."""
        killed = self.status == ACTIVE
        if killed:
            self._budget.make_up(alive)
        self._turn(ACTIVE, "")
        if self._row.path and going(self._hub.catalog, self._row.branch) is not None:
            self._workspace()  # which brings back files that a killed process had moved
        self.tie_up()
        self.close_calls()
        self._take_in()
        self._publish()

    # inside

    def _take_in(self) -> None:
        """What others left for it, into the journal."""
        if self._inbox.drain():
            self._host.dirty = True

    def _moved(self, row: SessionRow) -> None:
        """It went elsewhere: another timeline, another mind."""
        self._row = row
        self._line, self._mind = self._ledger.line, self._ledger.mind
        self._deeds = Deeds(self._hub, row, self._ledger)
        self._story = self._around = None
        self._pace.moved(self._now())

    def _arrived(self, row: SessionRow) -> None:
        self._moved(row)
        self.close_calls()  # of a commit that was made between a call and its result

    def _add(self, kind: str, data: Mapping[str, Any], *, version: int = 1) -> Event:
        self._touch()
        event = self._ledger.add(self._draft(kind, data, version))[0]
        self._keep_pace(kind, data)
        return event

    def _add_all(
        self, kind: str, several: Sequence[Mapping[str, Any]], key: str = ""
    ) -> list[Event]:
        self._touch()
        with self._ledger.alone():
            row, after, hub = self._row, self._ledger.tip.seq, self._hub
            rows = [noted(hub.catalog, row, after, key=key, count=len(several))] if key else []
            events = self._ledger.add(*(self._draft(kind, data) for data in several), rows=rows)
        self._keep_pace(kind, several[-1])
        return events

    def _touch(self) -> None:
        self._live()
        self._host.dirty = True

    def _draft(self, kind: str, data: Mapping[str, Any], version: int = 1) -> Draft:
        return Draft(kind, dict(data), self._hub.author, version=version)

    def _live(self) -> None:
        if self.holding.ended:
            raise Invalid(
                "closed", f"session {self.name!r} is not open any more: open it with the hub"
            )

    def _new_id(self) -> str:
        return self._sessions.new_id()
