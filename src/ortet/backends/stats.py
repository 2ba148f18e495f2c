"""Size statistics of a catalog, from aggregate queries that read no event bodies."""
# ruff: noqa: PLC0415 - psycopg is an extra

from __future__ import annotations

from pathlib import Path

import msgspec

from ortet.backends.base import Catalog
from ortet.backends.sqlite.catalog import SqliteCatalog

# Sequence numbers of a timeline have no gaps: the last one gives the number of events.
_SQLITE = """SELECT count(*), coalesce(sum(coalesce(
    (SELECT max(seq) FROM events WHERE timeline = timelines.id), at) - at), 0) FROM timelines"""
_POSTGRES = """SELECT count(*)::bigint, coalesce(sum(last - at), 0)::bigint,
    (SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
        WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
        AND NOT starts_with(relname, 'memory_')),
    (SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
        WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
        AND starts_with(relname, 'memory_')),
    (SELECT count(*)::bigint FROM pg_inherits WHERE inhparent = 'events'::regclass)
    FROM timelines"""


class CatalogStats(msgspec.Struct, frozen=True):
    """Counts and sizes of a catalog.

    `events` counts all events ever appended, including those that now exist only in commits.
    `bytes` is the size of all tables with their indexes. `memory` is the size of the memory index.
    """

    timelines: int
    events: int
    bytes: int
    memory: int = 0
    partitions: int = 0


def read_catalog_stats(catalog: Catalog, root: Path) -> CatalogStats | None:
    """Return statistics, or None for a catalog behind a server.

    Args:
        catalog: The catalog to measure.
        root: The directory of the store; used if the catalog is a file in it.
    """
    if isinstance(catalog, SqliteCatalog):
        with catalog._handle as db:
            timelines, events = next(db.execute(_SQLITE))
        return CatalogStats(
            timelines, events, sum(_size(path) for path in root.glob("catalog.db*"))
        )
    try:
        from ortet.backends.postgres.catalog import PostgresCatalog
    except ImportError:
        return None
    if not isinstance(catalog, PostgresCatalog):
        return None
    timelines, events, size, memory, partitions = catalog._client.run(_POSTGRES)[0]
    return CatalogStats(timelines, events, size, memory, partitions)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
