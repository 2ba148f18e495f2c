"""What a hub does with what is recorded: audit, erase, archive, retain, hand to clients."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortet._util.validation import CALLABLE, FLAG, LIST, PATH, TEXT, optional, require

if TYPE_CHECKING:
    from ortet.backends.base import RowChange
    from ortet.history.transfer.bundle import BundleImport
    from ortet.hub.governance.archive import ArchiveRecord
    from ortet.hub.governance.audit import AuditReport
    from ortet.hub.governance.holds import Hold
    from ortet.hub.governance.retention import RetainReport, RetentionPolicy
    from ortet.hub.governance.tombstones import ErasureReceipt
    from ortet.journal.reports.checkpoint import AgentCheckpoint
    from ortet.journal.state.records import Message
    from ortet.objects.base import ObjectRef
    from ortet.sessions.actions.bill import Bill, GroupBy, Since
    from ortet.sessions.manager import SessionManager
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.session import Session
    from ortet.sessions.table import SessionRow


class Governance(ABC):
    """The part of Hub that answers for sessions. What it needs is imported where it is used."""

    @abstractmethod
    def _session_manager(self) -> SessionManager: ...

    def _resolve_session(self, session: str | SessionReader) -> str:
        return self._session_manager().table.resolve(session)

    def audit(self, session: str | SessionReader) -> AuditReport:
        """Check every link and every seal of a session, then tell who did what, when and why.

        Corrupt names the first event that is not what was recorded.
        """
        from ortet.hub.governance.audit import audit

        return audit(self._session_manager(), self._resolve_session(session))

    def erase(
        self,
        session: str | SessionReader | None = None,
        *,
        seqs: Sequence[int] | None = None,
        user: str | None = None,
    ) -> ErasureReceipt:
        """Destroy what events say, in rows, objects and folds; that they happened stays recorded.

        Of a session: all it did itself, or these events. Of a user: what that actor did, and
        messages said with user=NAME, in one session or in all. Amounts spent stay. Forks lose what
        they share. Nobody may have one of these sessions open: Refused("lease_held"). When it is
        cut short, the next call ends it.
        """
        from ortet.hub.governance.erase import erase

        optional(TEXT, user=user)
        optional(LIST, seqs=seqs)
        return erase(
            self._session_manager(),
            None if session is None else self._resolve_session(session),
            seqs,
            user,
        )

    def bill(self, *, since: Since = None, by: GroupBy = "session") -> list[Bill]:
        """What was spent since a time, in totals by agent, session, model or day; see billing."""
        from ortet.sessions.actions.bill import bill

        return bill(self._session_manager().hub.catalog, since, by)

    def unsealed_objects(self) -> Iterator[ObjectRef]:
        """Objects that only events outside of commits name."""
        from ortet.hub.governance.unsealed import unsealed_objects

        return unsealed_objects(self._session_manager())

    def check_event_chains(self) -> Iterable[tuple[str, str]]:
        """Where, and what, is wrong with the events of all sessions."""
        from ortet.hub.governance.audit import check_event_chains

        return check_event_chains(self._session_manager())

    def adopt_erasures(self, imported: BundleImport, name: str) -> list[RowChange]:
        """Rows that let this store believe what was erased where a bundle comes from."""
        from ortet.hub.governance.adopting import adopt_erasures

        return adopt_erasures(self._session_manager(), imported, name)

    # state that no process holds

    def turn(
        self,
        session: str,
        message: Any,
        *,
        role: str = "user",
        agent: str = "default",
        reply: Callable[[Session], Any] | None = None,
    ) -> list[Message]:
        """One turn of a conversation, by whichever process gets it: opens the session by name, says
        `message`, and what `reply` answers; commits and lets go. Returns what was said.
        """
        from ortet.sessions.portable.carry_token import turn

        optional(CALLABLE, reply=reply)
        return turn(self._session_manager(), session, message, role=role, agent=agent, reply=reply)

    def from_carry(self, text: str) -> Session:
        """Go on with what a client carried; the session is opened.

        Refused("bad_carry") when it was changed, Conflict("stale_carry") when the store knows more,
        Unsupported("newer_carry") when a later release made it.
        """
        from ortet.sessions.portable.carry_token import from_carry

        return from_carry(self._session_manager(), text)

    def from_checkpoint(
        self, checkpoint: AgentCheckpoint | str | bytes, *, name: str = "", agent: str = ""
    ) -> Session:
        """A new session that knows what a checkpoint holds; name and agent are its own by default.

        Deeds done once are not done again, here or in another store, and unsettled ones stay so.
        Invalid("bad_checkpoint") names the field that is wrong; nothing is made then.
        """
        from ortet.sessions.portable.checkpoint import from_checkpoint

        return from_checkpoint(self._session_manager(), checkpoint, name, agent)

    # how long what is kept

    def archive(self, session: str | SessionReader, why: str = "") -> ArchiveRecord:
        """Put a paused or closed session away: one verified bundle in the bucket, rows trimmed.

        It can still be read. When it is cut short, the next call does it.
        """
        from ortet.hub.governance.archive import archive

        return archive(self._session_manager(), self._resolve_session(session), why)

    def unarchive(self, session: str | SessionReader) -> SessionRow:
        """Bring an archived session back: paused, or closed if it was closed before."""
        from ortet.hub.governance.archive import unarchive

        return unarchive(self._session_manager(), self._resolve_session(session))

    def remove(self, session: str | SessionReader) -> None:
        """Take a session and its events out of the store; its commits stay until reflog expires."""
        from ortet.hub.governance.remove import remove

        remove(self._session_manager(), self._resolve_session(session))

    def retention(
        self,
        agent: str = "default",
        *,
        keep_messages: float | None = None,
        archive_after: float | None = None,
    ) -> RetentionPolicy:
        """Set how many days an agent's messages are kept, and after how many idle ones its sessions
        are archived; None: for ever, never."""
        from ortet.hub.governance.retention import RetentionPolicy, set_policy

        return set_policy(
            self._session_manager().hub, agent, RetentionPolicy(keep_messages, archive_after)
        )

    def hold(self, session: str | SessionReader, why: str = "") -> Hold:
        """Let nothing of a session go, whatever a policy or an erasure says, until `release`."""
        from ortet.hub.governance.holds import hold

        return hold(self._session_manager(), self._resolve_session(session), why)

    def release(self, session: str | SessionReader) -> None:
        """End a hold."""
        from ortet.hub.governance.holds import release_hold

        release_hold(self._session_manager().hub, self._resolve_session(session))

    def retain(self, *, dry_run: bool = False) -> RetainReport:
        """Apply all policies: erase, archive, trim rows that commits hold. `dry_run` only tells."""
        from ortet.hub.governance.retention import retain

        require(FLAG, dry_run=dry_run)
        return retain(self._session_manager(), dry_run=dry_run)

    def export_jsonl(
        self, path: str | os.PathLike[str], *, sessions: Sequence[str] | None = None
    ) -> int:
        """Write sessions as an evaluation data set, one JSON object a line; returns how many."""
        from ortet.hub.governance.datasets import export_jsonl

        require(PATH, path=path)
        optional(LIST, sessions=sessions)
        ids = None if sessions is None else [self._resolve_session(one) for one in sessions]
        return export_jsonl(self._session_manager(), Path(path), ids)
