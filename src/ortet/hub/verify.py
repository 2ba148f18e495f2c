"""Verification of a whole store: rows, objects, event chains, effects, archives and machine homes.

A module of its own, because `sweep` must not load the audit code that verification needs.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import msgspec

from ortet.errors import Corrupt, OrtetError
from ortet.history.references import references_after_erasure
from ortet.history.refs import load_reflog_expiry
from ortet.history.tree.tree import Trees
from ortet.hub.effect_check import check_ledgers, repair_ledgers
from ortet.hub.governance.archive import check_archives
from ortet.hub.governance.audit import check_event_chains
from ortet.hub.sweep import gc_roots
from ortet.ids import Oid, to_hex
from ortet.machines.base import Loss
from ortet.machines.capture.ignore_rules import IgnoreRules
from ortet.machines.capture.scanner import scan
from ortet.machines.capture.stat_index import StatIndex
from ortet.machines.restore.checkout import checkout_image
from ortet.objects.base import DryRunObjectStore
from ortet.objects.blobs import read_file
from ortet.objects.gc.sweep import Progress
from ortet.objects.gc.verify import Problem, VerifyReport, verify
from ortet.sessions.manager import SessionManager
from ortet.store.context import StoreContext
from ortet.workspaces.table import WorkspaceRow

_HOME_INDEX, _HOME_TREE = "index", "tree"


def verify_store(
    sessions: SessionManager,
    progress: Progress | None,
    *,
    repair: bool = False,
    sample: float = 1.0,
    restore: bool = False,
) -> VerifyReport:
    """Verify the store; see `Maintenance.verify`.

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
        sample=sample,
    )
    restored = archives = 0
    if whole:
        found = list(check_archives(store))
        archives = len(found)
        rows += [Problem("", f"archive of {name}", what) for name, what in found if what]
        rows += _check_homes(sessions, sample)
    if not report.problems and whole:  # otherwise the event chains cannot be read
        rows += [
            Problem(oid="", where=where, what=what) for where, what in check_event_chains(sessions)
        ]
        if not rows:
            rows = [Problem("", where, what) for where, what, _ in check_ledgers(sessions)]
        if restore and not rows:
            checked = list(_check_restores(store))
            restored = len(checked)
            rows += [one for one in checked if one.what]
    report = msgspec.structs.replace(report, archives=archives, restored=restored)
    if problems := [*report.problems, *rows]:
        raise Corrupt(
            "verify_failed",
            f"{len(problems)} problem(s) in the store, first: {problems[0].what}; "
            f"{_remedy(problems)}",
            report=msgspec.to_builtins(msgspec.structs.replace(report, problems=problems)),
        )
    return report


def _remedy(problems: Iterable[Problem]) -> str:
    kinds = {one.where.partition(" ")[0] for one in problems}
    if kinds == {"index"}:
        return "the index was built again from its pack, and nothing is lost"
    if kinds == {"machine"}:
        return "touch the file to commit what is there, or restore it from a commit"
    return (
        "restore the damaged files from a backup, import the commits from a bundle, or run "
        "`ortet repair` to see what can be saved"
    )


# files: what a commit restores, and what a machine's index says about the disk


def _check_restores(store: StoreContext) -> Iterator[Problem]:
    """Restore the files of every branch and tag, and compare them with the commit."""
    place = store.root / "local" / f"verify.{os.getpid()}"
    done: set[Oid] = set()
    for head in chain(store.refs.branches(), store.refs.tags()):
        machine = store.history.state(head.oid).machine
        if not machine or Oid(machine) in done:
            continue
        done.add(Oid(machine))
        where = f"files of commit {to_hex(head.oid)[:12]}"
        try:
            what = _compare_restored(store, Oid(machine), place)
        except OrtetError as error:
            what = error.message
        finally:
            shutil.rmtree(place, ignore_errors=True)
        yield Problem(to_hex(head.oid), where, what)


def _compare_restored(store: StoreContext, machine: Oid, place: Path) -> str:
    image = store.read_image(machine)
    report = checkout_image(store.objects, store.trees, image, place)
    dry = DryRunObjectStore(store.objects)
    trees = Trees(dry)
    losses: list[Loss] = []
    found = scan(dry, trees, root=place, index=StatIndex(trees), rules=IgnoreRules(), losses=losses)
    if found.root.cid == image.root.cid or report.losses:
        return ""
    return "the restored files are not those of the commit"


def _check_homes(sessions: SessionManager, sample: float) -> Iterator[Problem]:
    """Compare files that did not change, by their times, with what was captured."""
    store, table = sessions.store, sessions.workspaces.table
    for row in table.all():
        home = store.root / "local" / "machines" / row.machine
        if row.host != table.host or not home.is_dir():
            continue
        index = StatIndex.load(home / _HOME_INDEX, store.trees)
        if index is not None:
            yield from _check_home(store, row, home, index, sample)


def _check_home(
    store: StoreContext, row: WorkspaceRow, home: Path, index: StatIndex, sample: float
) -> Iterator[Problem]:
    tree = home / _HOME_TREE
    root = tree if tree.is_dir() else Path(os.fsdecode(row.path))
    if row.engine != "folder" or not root.is_dir():
        return
    for directory, name in _names_of(index):
        if sample < 1 and random.random() >= sample:
            continue
        path = f"{directory}/{name}" if directory else name
        try:
            what = _compare_file(store, root / path, index, path)
        except OrtetError as error:
            what = error.message
        if what:
            yield Problem("", f"machine {row.machine}", f"file {path!r} of {row.name} {what}")


def _names_of(index: StatIndex) -> Iterator[tuple[str, str]]:
    """Yield (directory, name) of all entries of an index."""
    trail: list[str] = []
    for depth, name, node in index.nodes():
        del trail[depth:]
        trail.append(name)
        for each in node.names():
            yield "/".join(trail[1:]), each


def _compare_file(store: StoreContext, file: Path, index: StatIndex, path: str) -> str:
    try:
        status = os.lstat(file)
        entry = index.lookup(os.fsencode(path), status)
        if entry is None or not entry.is_file or entry.size != status.st_size:
            return ""  # changed since it was captured
        with open(file, "rb") as read:
            same = all(read.read(len(part)) == part for part in read_file(store.objects, entry))
        if same or index.lookup(os.fsencode(path), os.lstat(file)) is None:
            return ""
    except OSError:  # removed meanwhile, or not ours to read
        return ""
    return "has other bytes than were captured, though its times did not change"
