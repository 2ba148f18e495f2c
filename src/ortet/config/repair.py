"""Repair of an embedded store: the command `ortet repair`.

A repair never changes packs. A damaged catalog is moved to `local/damaged/` before a new one takes
its place. A dry run does the same to a copy of the catalog, with hard links to the packs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from ortet._util.codec import checksum
from ortet.backends.sqlite.catalog import SqliteCatalog
from ortet.backends.sqlite.commit_mark import commit_mark_for
from ortet.backends.sqlite.recovery_log import RecoveryLog
from ortet.backends.sqlite.salvage import salvage_catalog
from ortet.config.open_store import LOG_FILE, MARK_FILE
from ortet.errors import Corrupt, NotFound
from ortet.hub.hub import Hub
from ortet.hub.repair import Rebuilder, RepairReport
from ortet.objects.tail import storage_error

CATALOG = "catalog.db"
_LOG_SUFFIXES = ("-wal", "-shm")
_COPIED = ("FORMAT", "config.toml", "key")
_MOVED_AREA = Path("local") / "damaged"
SOUND, MISSING, DAMAGED, BEHIND = "sound", "missing", "damaged", "behind"


def repair_store(
    root: Path, open_store: Callable[[Path], Hub], *, apply: bool = False
) -> RepairReport:
    """Repair a store, or report what a repair would do.

    Stop all programs that have the store open before a repair is applied.

    Args:
        root: The directory of the store.
        open_store: Opens the store at a path.
        apply: Change the store. Otherwise nothing in it changes.

    Raises:
        NotFound: "no_store" if there is no store.
    """
    root = Path(os.path.abspath(root))
    if not (root / "FORMAT").exists():
        raise NotFound("no_store", f"there is no store at {root}: run `ortet init` first")
    try:
        if apply:
            return _repair(root, open_store, RepairReport(True, _diagnose(root)))
        with _copy_of(root) as place:
            return _repair(place, open_store, RepairReport(False, _diagnose(place)))
    except OSError as error:
        raise storage_error(error, f"repairing {root}") from error


def _diagnose(root: Path) -> str:
    path = root / CATALOG
    if not path.exists() or not path.stat().st_size:
        return MISSING
    try:
        with closing(SqliteCatalog(path, create=False, mark=root / MARK_FILE)) as catalog:
            return DAMAGED if catalog.check() else SOUND
    except Corrupt as error:
        return BEHIND if error.kind == "catalog_behind" else DAMAGED


def _repair(root: Path, open_store: Callable[[Path], Hub], report: RepairReport) -> RepairReport:
    if report.catalog in (MISSING, DAMAGED):
        report.rows = _replace_catalog(root)
    if report.catalog != SOUND:
        commit_mark_for(root / MARK_FILE).forget()
    logged = RecoveryLog(root / LOG_FILE).read()
    with open_store(root) as hub:
        rebuilder = Rebuilder(hub.internals.session_manager, logged, report)
        if report.catalog != SOUND:
            rebuilder.run()
        rebuilder.rebuild_effects()
        _verify(hub, report)
    return report


def _replace_catalog(root: Path) -> int:
    """Build a new catalog of the readable rows, and put it in the place of the damaged one."""
    part = root / f"{CATALOG}.repaired"
    rows = salvage_catalog(root / CATALOG, part)
    for name in (CATALOG, *(f"{CATALOG}{suffix}" for suffix in _LOG_SUFFIXES)):
        old = root / name
        if old.exists():
            (root / _MOVED_AREA).mkdir(parents=True, exist_ok=True)
            old.replace(root / _MOVED_AREA / f"{checksum(part.read_bytes()).hex()}-{name}")
    part.replace(root / CATALOG)
    return rows


def _verify(hub: Hub, report: RepairReport) -> None:
    """Note which damage is left. The first check builds wrong indexes again."""
    for final in (False, True):
        try:
            hub.verify()
        except Corrupt as error:
            for one in error.details.get("report", {}).get("problems", []):
                text = f"{one['where']}: {one['what']}"
                if not final and one["where"].startswith("index "):
                    report.rebuilt.append(one["where"])
                elif final:
                    report.lost.append(text)


@contextmanager
def _copy_of(root: Path) -> Iterator[Path]:
    """Yield a store with the same packs as `root`, and copies of all files that can change."""
    place = root / "local" / f"repair.{os.getpid()}"
    shutil.rmtree(place, ignore_errors=True)
    try:
        place.mkdir(parents=True, mode=0o700)
        for name in (*_COPIED, CATALOG, *(f"{CATALOG}{suffix}" for suffix in _LOG_SUFFIXES)):
            with suppress(FileNotFoundError):
                shutil.copy2(root / name, place / name)
        (place / "local").mkdir()
        for name in (MARK_FILE, LOG_FILE, "local/secret"):
            with suppress(FileNotFoundError):
                shutil.copy2(root / name, place / name)
        for area in ("local/tails", "local/index"):
            if (root / area).is_dir():
                shutil.copytree(root / area, place / area)
        shutil.copytree(root / "bucket", place / "bucket", copy_function=_link)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
