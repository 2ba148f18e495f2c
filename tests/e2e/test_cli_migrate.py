"""migrate of a directory and of a database, through a real process."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import psycopg
import pytest
from tests.fixtures.commands import Ortet
from tests.fixtures.postgres import shared

from ortet.backends.postgres import schema as postgres_schema
from ortet.backends.sqlite import connection as sqlite_open


@pytest.fixture
def on_postgres(ortet: Ortet, schema: str, tmp_path: Path) -> Ortet:
    url = f"{shared().url()}&bucket=file://{tmp_path}/bucket&schema={schema}"
    ortet.env["ORTET_URL"] = url
    return ortet


def make_first_format(schema: str) -> None:
    """A store as it was after the first migration."""
    ground = files("ortet.backends.postgres") / "migrations" / postgres_schema.MIGRATIONS[0]
    with psycopg.connect(shared().url()) as connection:
        connection.execute(f"CREATE SCHEMA {schema}; SET search_path = {schema}")
        connection.execute(ground.read_bytes())
        connection.execute("CREATE TABLE ortet_format AS SELECT 1 AS version")
        connection.execute("INSERT INTO records VALUES ('store', 'id', 'ab12', 1)")


def test_migrate_upgrades_an_old_catalog_once(
    on_postgres: Ortet, schema: str, tmp_path: Path
) -> None:
    make_first_format(schema)
    newest = len(postgres_schema.MIGRATIONS)
    found = on_postgres.json("migrate", cwd=tmp_path)
    assert found == {"before": 1, "after": newest}
    said = on_postgres("migrate", cwd=tmp_path).out
    assert said == f"the catalog has format {newest}: nothing to do\n"
    on_postgres("verify", cwd=tmp_path)


def test_a_database_without_a_store_stays_without(
    on_postgres: Ortet, schema: str, tmp_path: Path
) -> None:
    assert on_postgres.kind("migrate", cwd=tmp_path, code=4) == "no_store"
    with psycopg.connect(shared().url()) as connection:
        row = connection.execute("SELECT to_regnamespace(%s)", (schema,)).fetchone()
    assert row == (None,)


def test_a_newer_format_is_refused(on_postgres: Ortet, schema: str, tmp_path: Path) -> None:
    make_first_format(schema)
    with psycopg.connect(shared().url()) as connection:
        connection.execute(f"UPDATE {schema}.ortet_format SET version = 1000")
    assert on_postgres.kind("migrate", cwd=tmp_path, code=9) == "newer_format"


def test_migrate_of_a_current_directory_store_changes_nothing(ortet: Ortet, proj: Path) -> None:
    newest = sqlite_open.CHECKED_FORMAT
    assert ortet.json("migrate", cwd=proj) == {"before": newest, "after": newest}


def test_migrate_without_a_store_is_refused_and_creates_none(ortet: Ortet, tmp_path: Path) -> None:
    assert ortet.kind("migrate", cwd=tmp_path, code=4) == "no_store"
    assert not ortet.store.exists()


def test_migrate_of_a_store_behind_http_is_refused(ortet: Ortet, tmp_path: Path) -> None:
    ortet.env["ORTET_URL"] = "http://127.0.0.1:9"
    assert ortet.kind("migrate", cwd=tmp_path, code=9) == "remote_store"
