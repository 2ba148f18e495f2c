"""Archive a session to a bundle in the bucket, and restore it.

The bundle is verified before the status changes and rows are trimmed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ortet._util.codec import decode, encode
from ortet._util.failpoints import failpoint
from ortet._util.validation import check_text
from ortet.backends.base import Move, RowChange
from ortet.errors import Corrupt, NotFound, OrtetError
from ortet.history.references import references
from ortet.history.transfer import bundle
from ortet.hub.governance.legal_holds import check_hold
from ortet.ids import Oid, from_hex
from ortet.sessions.actions.approvals import pending_approval_row
from ortet.sessions.actions.effect_recovery import arriving_rows
from ortet.sessions.results import ArchiveRecord
from ortet.sessions.table import ARCHIVED, PAUSED, SessionRow, check_move
from ortet.sessions.writing.lease_handover import is_handover_owner
from ortet.store.sweep_retry import run_with_sweep_retry

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager
    from ortet.store.context import StoreContext

ARCHIVE_KIND = "archive"
_PREFIX = "archives/"


def archive(sessions: SessionManager, id_: str, why: str = "") -> ArchiveRecord:
    """Archive a session; see `Governance.archive`."""
    check_text(why=why)
    store, row = sessions.store, sessions.table.get(id_)
    check_hold(store, row)
    held = store.catalog.lease(f"session:{id_}")
    if held is None or not is_handover_owner(
        held.owner
    ):  # if a server will hand it over, it pauses the session first
        check_move(row.name, row.status, ARCHIVED)
    with sessions.leased_session(row) as session:
        row = session.internals.row
        check_move(row.name, row.status, ARCHIVED)
        session.internals.drain_inbox()
        commit = from_hex(session.internals.navigation.commit_all_events("archive").oid)
        failpoint("archive.committed")
        done = _store_bundle(store, id_, row.branch, commit, row.status)
        session.internals.lifecycle.set_status(
            ARCHIVED, why, rows=[RowChange(ARCHIVE_KIND, id_, encode(done))]
        )
        failpoint("archive.turned")
        trim_rows(sessions, session.internals.row)
    _delete_other_bundles(store, id_, done.key)
    return done


def unarchive(sessions: SessionManager, id_: str) -> SessionRow:
    """Restore an archived session; see `Governance.unarchive`."""
    store, row = sessions.store, sessions.table.get(id_)
    check_move(row.name, row.status, PAUSED)
    done = find_archive(store, id_)
    if done is not None:
        _restore_bundle(sessions, row, done)
    failpoint("archive.back")
    with sessions.leased_session(row) as session:
        rows = [RowChange(ARCHIVE_KIND, id_, None), pending_approval_row(id_)]
        session.internals.lifecycle.set_status(done.status if done else PAUSED, "", rows=rows)
        row = session.internals.row
    _delete_other_bundles(store, id_, "")
    return row


def find_archive(store: StoreContext, id_: str) -> ArchiveRecord | None:
    """Return the archive record of a session, or None if it is not archived."""
    row = store.catalog.row(ARCHIVE_KIND, id_)
    return decode(ArchiveRecord, row.value) if row else None


def rewrite_archive(sessions: SessionManager, id_: str) -> None:
    """Replace the bundle of an archived session after an erasure."""
    store, done = sessions.store, find_archive(sessions.store, id_)
    if done is not None:
        row = sessions.table.get(id_)
        new = _store_bundle(store, id_, row.branch, from_hex(done.commit), done.status)
        store.catalog.put_row(ARCHIVE_KIND, id_, encode(new))
        failpoint("archive.rewritten")
        done = new
    _delete_other_bundles(store, id_, done.key if done else "")


def check_archives(store: StoreContext) -> Iterator[tuple[str, str]]:
    """Read the bundle of every archived session. Yield (session, problem or "") for each."""
    after = ""
    while page := store.catalog.rows(ARCHIVE_KIND, after):
        for row in page:
            done = decode(ArchiveRecord, row.value)
            try:
                with _bundle_file(store, done, done.session) as file:
                    refs = bundle.verify_bundle(store.objects, file, references)
                wrong = from_hex(done.commit) not in refs.values()
                yield done.session, "its bundle holds another commit" if wrong else ""
            except OrtetError as error:
                if store.catalog.row(ARCHIVE_KIND, row.key) == row:  # not unarchived meanwhile
                    yield done.session, error.message
        after = page[-1].key


@contextmanager
def _bundle_file(store: StoreContext, done: ArchiveRecord, name: str) -> Iterator[Path]:
    """Yield the path of an archive's bundle: the file itself, or a copy from the bucket.

    Raises:
        Corrupt: "no_archive" if the bucket does not have the bundle.
    """
    found = store.bucket.local_path(done.key)
    if found is not None:
        yield found
        return
    with _temporary_file(store) as file:
        try:
            _copy(lambda at, size: store.bucket.get(done.key, at, size), done.size, file)
        except NotFound as error:
            raise Corrupt(
                "no_archive",
                f"the bundle of session {name!r} is not in the bucket: restore {done.key} "
                "from a copy",
            ) from error
        yield file


def trim_rows(sessions: SessionManager, row: SessionRow) -> int:
    """Delete event rows that a commit of this session contains. Return their number."""
    line = sessions.services.load(row).line
    return sessions.store.catalog.trim_events(row.timeline, line.base.seq)


def _store_bundle(
    store: StoreContext, id_: str, branch: str, commit: Oid, status: str
) -> ArchiveRecord:
    key = f"{_PREFIX}{id_}/{store.new_id()}.bundle"
    with _temporary_file(store) as file:
        report = bundle.export_bundle(store.objects, {branch: commit}, references, file)
        # Verifies the bundle. It stores nothing, because all objects are here.
        bundle.import_bundle(store.objects, file, references)
        store.bucket.put_file(key, file)
    failpoint("archive.stored")
    return ArchiveRecord(id_, key, commit.hex(), report.size, store.clock.now_ns(), status)


def _restore_bundle(sessions: SessionManager, row: SessionRow, done: ArchiveRecord) -> None:
    """Store missing objects, and create the branch if it no longer exists."""
    run_with_sweep_retry(sessions.store, lambda: _import_archive(sessions, row, done))


def _import_archive(sessions: SessionManager, row: SessionRow, done: ArchiveRecord) -> None:
    store = sessions.store
    with store.writing(), _bundle_file(store, done, row.name) as file:
        bundle.import_bundle(store.objects, file, references)
        store.objects.flush()
        name = f"branch:{row.branch}"
        if store.catalog.head(name) is None:
            move = Move(name, None, from_hex(done.commit))
            rows = arriving_rows(sessions.services, [from_hex(done.commit)])
            store.catalog.move(
                [move], verb="unarchive", actor=store.author, detail=row.name, rows=rows
            )


_COPY_CHUNK_BYTES = 8 << 20


def _copy(read: Callable[[int, int], bytes], size: int, file: Path) -> None:
    with file.open("wb") as out:
        while out.tell() < size:
            data = read(out.tell(), _COPY_CHUNK_BYTES)
            if not data:
                break
            out.write(data)


@contextmanager
def _temporary_file(store: StoreContext) -> Iterator[Path]:
    file = store.root / "local" / f"archive.{os.getpid()}.{store.new_id()}"
    try:
        yield file
    finally:
        for path in (file, file.with_name(file.name + ".part")):
            with suppress(FileNotFoundError):
                path.unlink()


def _delete_other_bundles(store: StoreContext, id_: str, keep: str) -> None:
    """Delete bundles of this session that no row names. A killed process may have left some."""
    keys = [item.key for item in store.bucket.list(f"{_PREFIX}{id_}/") if item.key != keep]
    store.bucket.delete(keys)
    for path in (store.root / "local").glob("archive.*"):
        if not Path(f"/proc/{path.name.split('.')[1]}").exists():
            path.unlink(missing_ok=True)
