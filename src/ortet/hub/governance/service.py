"""Verbs of the hub that govern recorded data: audit, erase, archive, retention and export."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortet._util.validation import FLAG, LIST, PATH, TEXT, optional, require

if TYPE_CHECKING:
    from ortet.hub.governance.audit import AuditReport
    from ortet.hub.governance.legal_holds import Hold
    from ortet.hub.governance.retention import RetainReport, RetentionPolicy
    from ortet.hub.governance.tombstones import ErasureReceipt
    from ortet.sessions.actions.bill import Bill, GroupBy, Since
    from ortet.sessions.manager import SessionManager
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.results import ArchiveRecord
    from ortet.sessions.table import SessionRow


class Governance:
    """Audit, erasure, archives, retention and data sets. Imports happen in the verbs."""

    def __init__(self, sessions: SessionManager) -> None:
        self._sessions = sessions

    def _resolve_session(self, session: str | SessionReader) -> str:
        return self._sessions.table.resolve(session)

    def audit(self, session: str | SessionReader) -> AuditReport:
        """Check the whole hash chain of a session, and list who did what, when and why.

        Args:
            session: The session, its id, its name, or agent/name.

        Returns:
            One line for each event, the erasure receipts, and the hash of the last event.

        Raises:
            Corrupt: If an event is not the one that was recorded. The message names the first one.
        """
        from ortet.hub.governance.audit import audit

        return audit(self._sessions, self._resolve_session(session))

    def erase(
        self,
        session: str | SessionReader | None = None,
        *,
        seqs: Sequence[int] | None = None,
        user: str | None = None,
    ) -> ErasureReceipt:
        """Destroy the content of events in rows, objects and folds.

        The record that the events happened stays. Spent amounts stay. Forks lose the events that
        they share. If the call is interrupted, the next call finishes it.

        Args:
            session: Erase everything that this session did itself. With `user`, only that user's
                part.
            seqs: Erase only these events of the session.
            user: Erase what this actor did and messages with user=NAME, in `session` or in all
                sessions.

        Returns:
            A signed receipt. If `complete` is False, repeat the call when the other process has
                ended.

        Raises:
            Invalid: If no session or user is given, or an event does not exist.
            Refused: kind "lease_held", if a session is open; "on_hold", if one is on hold.
            Unsupported: kind "shared_store", if several hosts share the store.
        """
        from ortet.hub.governance.erase import erase

        optional(TEXT, user=user)
        optional(LIST, seqs=seqs)
        return erase(
            self._sessions,
            None if session is None else self._resolve_session(session),
            seqs,
            user,
        )

    def bill(self, *, since: Since = None, by: GroupBy = "session") -> list[Bill]:
        """Return what was spent, in totals by agent, session, model or day.

        Args:
            since: Count from this time on. The default is everything.
            by: "agent", "session", "model" or "day".

        Raises:
            Invalid: kind "bad_bill", if `by` is another word.
        """
        from ortet.sessions.actions.bill import bill

        return bill(self._sessions.store.catalog, since, by)

    # retention

    def archive(self, session: str | SessionReader, why: str = "") -> ArchiveRecord:
        """Move a paused or closed session to one verified bundle in the bucket.

        Its event rows are trimmed. The session can still be read. If the call is interrupted, call
        it again.

        Args:
            session: The session, its id, its name, or agent/name.
            why: Reason, for the journal.

        Raises:
            Conflict: If the status does not allow it, for example because the session is in use.
            Refused: kind "on_hold", if the session is on hold.
        """
        from ortet.hub.governance.archive import archive

        return archive(self._sessions, self._resolve_session(session), why)

    def unarchive(self, session: str | SessionReader) -> SessionRow:
        """Restore an archived session. It is paused, or closed if it was closed before.

        Raises:
            Corrupt: kind "no_archive", if the bundle is not in the bucket.
        """
        from ortet.hub.governance.archive import unarchive

        return unarchive(self._sessions, self._resolve_session(session))

    def remove(self, session: str | SessionReader) -> None:
        """Remove a session and its events. Its commits stay until their reflog entries expire.

        Raises:
            Refused: kind "lease_held", if the session is open; "on_hold", if it is on hold.
        """
        from ortet.hub.governance.remove import remove

        remove(self._sessions, self._resolve_session(session))

    def retention(
        self,
        agent: str = "default",
        *,
        keep_messages: float | None = None,
        archive_after: float | None = None,
    ) -> RetentionPolicy:
        """Set the retention policy of an agent.

        Args:
            agent: The agent.
            keep_messages: Erase messages after this number of days. None keeps them forever.
            archive_after: Archive sessions after this number of idle days. None never archives.

        `retain` applies the policies.
        """
        from ortet.hub.governance.retention import RetentionPolicy, set_policy

        return set_policy(
            self._sessions.store, agent, RetentionPolicy(keep_messages, archive_after)
        )

    def hold(self, session: str | SessionReader, why: str = "") -> Hold:
        """Put a session on hold until `release`: nothing of it is erased, archived or removed.

        Args:
            session: The session, its id, its name, or agent/name.
            why: Reason for the hold.
        """
        from ortet.hub.governance.legal_holds import hold

        return hold(self._sessions, self._resolve_session(session), why)

    def release(self, session: str | SessionReader) -> None:
        """End the hold of a session."""
        from ortet.hub.governance.legal_holds import release_hold

        release_hold(self._sessions.store, self._resolve_session(session))

    def retain(self, *, dry_run: bool = False) -> RetainReport:
        """Apply the policies of all agents: erase, archive, and trim rows that commits contain.

        Args:
            dry_run: Only report; change nothing.

        Returns:
            The actions, and the sessions that were kept with the reason.
        """
        from ortet.hub.governance.retention import retain

        require(FLAG, dry_run=dry_run)
        return retain(self._sessions, dry_run=dry_run)

    def export_jsonl(
        self, path: str | os.PathLike[str], *, sessions: Sequence[str] | None = None
    ) -> int:
        """Write sessions as an evaluation data set, one JSON object per line.

        Args:
            path: The file. It is replaced as a whole.
            sessions: Ids or names. The default is all sessions.

        Returns:
            Number of sessions written.

        Raises:
            NotFound: If a session does not exist. No file is written then.
            Unavailable: kind "io_error", if the file cannot be written.
        """
        from ortet.hub.governance.datasets import export_jsonl

        require(PATH, path=path)
        optional(LIST, sessions=sessions)
        ids = None if sessions is None else [self._resolve_session(one) for one in sessions]
        return export_jsonl(self._sessions, Path(path), ids)
