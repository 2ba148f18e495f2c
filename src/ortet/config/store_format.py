"""Reads the format version of a catalog without changing it. Reads no environment."""

from __future__ import annotations

from pathlib import Path

from ortet.config.open_shared_store import SharedStoreAddress, parse_shared_url
from ortet.errors import Unsupported


def read_sqlite_format(path: Path) -> int:
    """Return the format of an embedded store's catalog; 0 if there is none."""
    import apsw

    from ortet.backends.sqlite.connection import translate_sqlite_error

    if not path.exists():
        return 0
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(30_000)
            return int(connection.execute("PRAGMA user_version").get)
        finally:
            connection.close()
    except apsw.Error as error:
        raise translate_sqlite_error(error, path) from error


def read_postgres_format(url: str) -> int:
    """Return the format of a shared store's catalog; 0 if there is none."""
    return read_format_at(parse_shared_url(url))


def read_format_at(address: SharedStoreAddress) -> int:
    """Return the format of the catalog at a parsed address; 0 if there is none."""
    try:
        import psycopg
    except ImportError as error:
        raise Unsupported(
            "extra_missing",
            f'a store in PostgreSQL needs psycopg ({error}): pip install "ortet[postgres]"',
        ) from error
    from psycopg import sql

    from ortet.backends.postgres.errors import database_gone, translate_postgres_error

    table = sql.Identifier(address.schema, "ortet_format")
    place = f"the database ({address.schema})"
    try:
        with psycopg.connect(address.database, autocommit=True, connect_timeout=10) as connection:
            row = connection.execute(
                sql.SQL("SELECT coalesce(max(version), 0) FROM {}").format(table)
            ).fetchone()
            return int(row[0]) if row else 0
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return 0
    except psycopg.OperationalError as error:
        raise database_gone(place, error) from error
    except psycopg.Error as error:
        raise translate_postgres_error(error, place) from error
