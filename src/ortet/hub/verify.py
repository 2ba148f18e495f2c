"""Verification of a whole store: catalog rows, objects, event chains and the ledger of effects.

A module of its own, because `sweep` must not load the audit code that verification needs.
"""

from __future__ import annotations

import msgspec

from ortet.errors import Corrupt
from ortet.history.references import references_after_erasure
from ortet.history.refs import load_reflog_expiry
from ortet.hub.effect_check import check_ledgers, repair_ledgers
from ortet.hub.governance.audit import check_event_chains
from ortet.hub.sweep import gc_roots
from ortet.objects.gc.sweep import Progress
from ortet.objects.gc.verify import Problem, VerifyReport, verify
from ortet.sessions.manager import SessionManager


def verify_store(
    sessions: SessionManager, progress: Progress | None, *, repair: bool = False
) -> VerifyReport:
    """Verify the catalog rows, all objects, all event chains and the rows of effects.

    Args:
        sessions: the sessions of the store.
        progress: called with (done, total) during the work.
        repair: first write rows of effects again that the journals contradict.

    Raises:
        Corrupt: kind "verify_failed". `details["report"]` holds the report with all problems.
    """
    store = sessions.store
    if repair:
        repair_ledgers(sessions)
    # Check rows first: damaged rows cannot tell which objects should exist.
    rows = [Problem(oid="", where="catalog", what=what) for what in store.catalog.check()]
    whole = not rows
    report = verify(
        store.objects,
        lambda: gc_roots(sessions, load_reflog_expiry(store.catalog)) if whole else iter(()),
        references_after_erasure(store.objects),
        progress=progress,
    )
    if not report.problems and whole:  # otherwise the event chains cannot be read
        rows = [
            Problem(oid="", where=where, what=what) for where, what in check_event_chains(sessions)
        ]
        if not rows:
            rows = [Problem("", where, what) for where, what, _ in check_ledgers(sessions)]
    if problems := [*report.problems, *rows]:
        raise Corrupt(
            "verify_failed",
            f"{len(problems)} problem(s) in the store, first: {problems[0].what}; restore the "
            "damaged files from a backup, or import the commits from a bundle",
            report=msgspec.to_builtins(msgspec.structs.replace(report, problems=problems)),
        )
    return report
