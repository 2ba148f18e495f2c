"""How a catalog file is opened, migrated and refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import apsw
import pytest

from ortet.backends.sqlite import connection as sqlite_open
from ortet.backends.sqlite.catalog import SqliteCatalog
from ortet.backends.sqlite.connection import (
    APPLICATION_ID,
    CHECKED_FORMAT,
    MIGRATIONS,
    _connect,
    check_library,
    translate_sqlite_error,
)
from ortet.errors import Corrupt, Invalid, OrtetError, Unavailable, Unsupported


def test_shipped_migrations_are_the_known_ones() -> None:
    there = (files("ortet.backends.sqlite") / "migrations").iterdir()
    shipped = [item.name for item in there if item.is_file()]
    assert sorted(shipped) == list(MIGRATIONS)
    assert [name[:4] for name in MIGRATIONS] == [f"{n:04}" for n in range(1, len(MIGRATIONS) + 1)]


def test_a_new_catalog_file_has_wal_mode_and_the_current_version(path: Path) -> None:
    catalog = SqliteCatalog(path)
    with catalog._handle as db:
        assert db.execute("PRAGMA journal_mode").get == "wal"
        assert db.execute("PRAGMA synchronous").get == 2
        assert db.execute("PRAGMA trusted_schema").get == 0
        assert db.execute("PRAGMA user_version").get == CHECKED_FORMAT
        assert db.execute("PRAGMA application_id").get == APPLICATION_ID
    catalog.close()
    assert os.listdir(path.parent) == [path.name]  # the log is folded in by the last to close


def test_opening_a_catalog_that_another_process_is_creating_succeeds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(path: Path, busy_ms: int, *, checked: bool) -> apsw.Connection:
        connection = _connect(path, busy_ms, checked=checked)
        monkeypatch.setattr(sqlite_open, "_connect", _connect)

        def trace(_cursor: object, statement: str, _bindings: object) -> bool:
            if "sqlite_schema" in statement:  # it had no version and no mark a moment ago
                connection.exec_trace = None
                SqliteCatalog(path).close()
            return True

        connection.exec_trace = trace
        return connection

    monkeypatch.setattr(sqlite_open, "_connect", connect)
    SqliteCatalog(path).close()
    SqliteCatalog(path, create=False).close()


def test_old_library_is_refused() -> None:
    check_library(3_051_003)
    with pytest.raises(Unsupported) as caught:
        check_library(3_051_002)
    assert caught.value.kind == "old_sqlite"
    assert "3.51.2" in caught.value.message


def test_a_catalog_of_a_newer_format_is_refused_unchanged(path: Path) -> None:
    SqliteCatalog(path).close()
    db = apsw.Connection(str(path))
    db.execute(f"PRAGMA user_version = {CHECKED_FORMAT + 1}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(Unsupported) as caught:
        SqliteCatalog(path)
    assert caught.value.kind == "newer_format"
    assert "upgrade" in caught.value.message
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_refused(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE theirs (x)")
    db.close()
    with pytest.raises(Corrupt) as caught:
        SqliteCatalog(path)
    assert caught.value.kind == "not_a_catalog"


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 64)


def header(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"nonsense")


def schema(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xa5" * 3000)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [garbage, header, schema, cut])
def test_a_damaged_catalog_file_is_reported_as_corrupt(
    path: Path, damage: Callable[[Path], None]
) -> None:
    SqliteCatalog(path).close()
    damage(path)
    with pytest.raises(Corrupt) as caught:
        catalog = SqliteCatalog(path)
        catalog.ops()
        catalog.rows("kind")
        catalog.heads()
    assert caught.value.kind == "catalog_damaged"
    assert str(path) in caught.value.message


def test_missing_or_empty_file_is_not_made_unless_allowed(path: Path) -> None:
    with pytest.raises(Corrupt) as caught:
        SqliteCatalog(path, create=False)
    assert caught.value.kind == "no_catalog"
    assert not path.exists()
    path.write_bytes(b"")
    with pytest.raises(Corrupt):
        SqliteCatalog(path, create=False)
    apsw.Connection(str(path)).execute(
        "PRAGMA journal_mode = WAL"
    )  # no longer empty, still nothing
    with pytest.raises(Corrupt):
        SqliteCatalog(path, create=False)
    SqliteCatalog(path).close()
    SqliteCatalog(path, create=False).close()


def test_a_catalog_in_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        SqliteCatalog(tmp_path / "absent" / "catalog.db")
    assert caught.value.kind == "no_access"


def test_a_closed_catalog_refuses_reads(path: Path) -> None:
    catalog = SqliteCatalog(path)
    catalog.close()
    catalog.close()
    with pytest.raises(Invalid) as caught:
        catalog.head("h")
    assert caught.value.kind == "closed"


def test_the_working_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    catalog = SqliteCatalog(Path("catalog.db"))
    catalog.put_row("kind", "key", b"")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    catalog._handle.before_fork()
    catalog._handle.after_fork()
    assert catalog.row("kind", "key") is not None
    catalog.close()


@pytest.mark.parametrize(
    ("error", "expected", "kind"),
    [
        (apsw.BusyError(), Unavailable, "busy"),
        (apsw.LockedError(), Unavailable, "busy"),
        (apsw.FullError(), Unavailable, "disk_full"),
        (apsw.IOError(), Unavailable, "storage_error"),
        (apsw.CorruptError(), Corrupt, "catalog_damaged"),
        (apsw.NotADBError(), Corrupt, "catalog_damaged"),
        (apsw.SQLError(), Corrupt, "catalog_damaged"),
        (apsw.CantOpenError(), Unavailable, "no_access"),
        (apsw.ReadOnlyError(), Unavailable, "no_access"),
        (apsw.PermissionsError(), Unavailable, "no_access"),
        (apsw.MisuseError(), OrtetError, "sqlite"),
    ],
)
def test_each_sqlite_error_maps_to_an_ortet_error(
    error: apsw.Error, expected: type[OrtetError], kind: str
) -> None:
    ours = translate_sqlite_error(error, Path("catalog.db"))
    assert type(ours) is expected
    assert ours.kind == kind


@pytest.mark.disk("16k")
def test_a_full_disk_is_named_when_a_catalog_is_created(small_disk: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        SqliteCatalog(small_disk / "catalog.db")
    assert caught.value.kind == "disk_full"


def test_every_changed_bit_of_a_page_is_noticed(path: Path) -> None:
    catalog = SqliteCatalog(path)
    for number in range(60):
        catalog.put_row("kind", f"{number:04}", bytes([number]) * 200)
    catalog.close()
    whole = path.read_bytes()
    for at in range(4096 + 3, len(whole), 1013):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        damaged = SqliteCatalog(path)
        assert damaged.check() != []
        damaged.close()


def test_a_catalog_that_ends_within_a_page_is_damaged(path: Path) -> None:
    SqliteCatalog(path).close()
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(Corrupt) as caught:
        SqliteCatalog(path)
    assert caught.value.kind == "catalog_damaged"
