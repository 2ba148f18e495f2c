"""What doctor finds of the servers of a store: real ones, and some that are not right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import psycopg
import pytest
from tests.fixtures.postgres import Shared, shared
from tests.fixtures.s3 import set_environ
from tests.fixtures.valkey import Server as Valkey
from tests.fixtures.waiting import WAIT

from ortet.backends.local.bucket import FileBucket
from ortet.backends.object_storage.bucket import S3Bucket
from ortet.config import server_checks
from ortet.config.environment import open_hub
from ortet.config.server_checks import PROBE_PREFIX, _probe_bucket, examine_servers
from ortet.errors import Refused, Unavailable
from ortet.machines.base import Capability


def looked(url: str, place: Path) -> dict[str, Capability]:
    return {one.name: one for one in examine_servers(url, cache=place / "cache")}


@contextmanager
def role(*grants: str) -> Iterator[str]:
    """A user of the database that may log in, and what these say."""
    name = f"role_{uuid4().hex[:8]}"
    with psycopg.connect(shared().url(), autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN")
        for grant in grants:
            admin.execute(f"{grant} TO {name}")
        try:
            yield name
        finally:
            admin.execute(f"DROP OWNED BY {name}")
            admin.execute(f"DROP ROLE {name}")


@pytest.mark.valkey
def test_doctor_checks_every_server_of_a_store_and_creates_nothing(
    tmp_path: Path, schema: str, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environ(monkeypatch)
    monkeypatch.setattr(server_checks, "_PROBE_TIMEOUT_SECONDS", WAIT)  # this host may be slow
    bucket = f"s3://ortet/{schema}?endpoint={s3}"
    valkey = Valkey()
    valkey.start()
    try:
        url = f"{shared().url()}&schema={schema}&bucket={quote(bucket, safe='')}"
        url += f"&signal={quote(valkey.url, safe='')}&cache={quote(valkey.url + '?db=1', safe='')}"
        found = looked(url, tmp_path)
    finally:
        valkey.close()
    assert found["schema"].detail.endswith("no store yet, `ortet init` makes one")
    wanted = {"postgresql", "schema", "rights", "clock", "connections", "bucket", "valkey"}
    wanted.add("valkey cache")
    assert {name for name in wanted if not found[name].ok} == set()
    assert found["durable"].fix.startswith("set fsync = on")  # that of tests has it off
    assert list(S3Bucket(bucket).list(PROBE_PREFIX)) == []
    with psycopg.connect(shared().url()) as connection:
        row = connection.execute("SELECT to_regnamespace(%s)", (schema,)).fetchone()
    assert row == (None,)  # nothing was made


def test_doctor_reports_an_old_or_newer_format_without_changing_it(
    tmp_path: Path, schema: str
) -> None:
    url = f"{shared().url()}&schema={schema}&bucket=file://{tmp_path}/bucket"
    open_hub(url, environ={"XDG_CACHE_HOME": str(tmp_path)}).close()
    assert looked(url, tmp_path)["schema"].ok
    with psycopg.connect(shared().url(), autocommit=True) as connection:
        for version, fix in ((1, "ortet migrate"), (1000, "upgrade ortet")):
            connection.execute(f'UPDATE "{schema}".ortet_format SET version = {version}')
            found = looked(url, tmp_path)["schema"]
            assert not found.ok
            assert fix in found.fix
            row = connection.execute(f'SELECT version FROM "{schema}".ortet_format').fetchone()
            assert row == (version,)


def test_rights_that_are_missing_are_named(tmp_path: Path, schema: str) -> None:
    admin = shared().url()
    end = f"&schema={schema}&bucket=file://{tmp_path}/bucket"
    with role() as name:
        found = looked(admin.replace("postgres@", f"{name}@") + end, tmp_path)["rights"]
        assert found.fix == f'GRANT CREATE ON DATABASE "postgres" TO "{name}"'
    open_hub(admin + end, environ={"XDG_CACHE_HOME": str(tmp_path)}).close()
    with role() as name:
        seen = looked(admin.replace("postgres@", f"{name}@") + end, tmp_path)
        assert seen["rights"].fix == f'GRANT ALL ON SCHEMA "{schema}" TO "{name}"'
        assert not seen["schema"].ok
    with role(f'GRANT ALL ON SCHEMA "{schema}"') as name:
        found = looked(admin.replace("postgres@", f"{name}@") + end, tmp_path)["rights"]
        assert "tables of another user" in found.detail


def test_a_user_without_rights_is_advised_to_run_doctor(tmp_path: Path, schema: str) -> None:
    admin = shared().url()
    end = f"&schema={schema}&bucket=file://{tmp_path}/bucket"
    open_hub(admin + end, environ={"XDG_CACHE_HOME": str(tmp_path)}).close()
    read = f'GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}"'
    with role(f'GRANT ALL ON SCHEMA "{schema}"', read) as name:
        url = admin.replace("postgres@", f"{name}@") + end
        with (
            pytest.raises(Refused, match="`ortet doctor` says") as caught,
            open_hub(url, environ={"XDG_CACHE_HOME": str(tmp_path)}) as hub,
        ):
            hub.session("s")
        assert "CONTEXT" not in caught.value.message  # nor any of our functions


def test_a_server_without_free_connections_is_reported(tmp_path: Path, schema: str) -> None:
    """It says so without a state, and its password is not what is wrong."""
    with role() as name, psycopg.connect(shared().url(), autocommit=True) as admin:
        admin.execute(f"ALTER ROLE {name} CONNECTION LIMIT 0")
        url = shared().url().replace("postgres@", f"{name}@")
        url += f"&schema={schema}&bucket=file://{tmp_path}/bucket"
        assert "max_connections" in looked(url, tmp_path)["postgresql"].fix
        with pytest.raises(Unavailable, match="lower connections=") as caught:
            open_hub(url, environ={"XDG_CACHE_HOME": str(tmp_path)})
        assert caught.value.kind == "database_gone"
        assert ".pgpass" not in caught.value.message


def test_a_schema_that_is_there_needs_no_right_on_the_database(tmp_path: Path, schema: str) -> None:
    """Somebody who runs the database makes it, and a user who may use nothing else."""
    admin = shared().url()
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'CREATE SCHEMA "{schema}"')
    with role(f'GRANT USAGE, CREATE ON SCHEMA "{schema}"') as name:
        url = admin.replace("postgres@", f"{name}@")
        with psycopg.connect(url) as connection:
            asked = "SELECT has_database_privilege(current_database(), 'CREATE')"
            assert connection.execute(asked).fetchone() == (False,)
        url += f"&schema={schema}&bucket=file://{tmp_path}/bucket"
        assert looked(url, tmp_path)["rights"].ok
        for text in ("first", "second"):
            with (
                open_hub(url, environ={"XDG_CACHE_HOME": str(tmp_path)}) as hub,
                hub.session("s") as s,
            ):
                s.say("user", text)
                s.learn(f"{text} fact")
                s.commit(text)
                assert s.recall(text)[0].text
        assert looked(url, tmp_path)["schema"].ok


def test_unreachable_servers_are_reported(tmp_path: Path) -> None:
    url = "postgresql://nobody@127.0.0.1:1/none?bucket=ftp://x&signal=redis://127.0.0.1:1"
    found = looked(url, tmp_path)
    assert not any(found[name].ok for name in ("postgresql", "bucket", "valkey"))
    assert "~/.pgpass" in found["postgresql"].fix
    assert "write s3://" in found["bucket"].fix
    assert "start it" in found["valkey"].fix
    assert not looked("http://127.0.0.1:1", tmp_path)["server"].ok


def test_a_bucket_that_overwrites_objects_is_refused(tmp_path: Path) -> None:
    class Careless(FileBucket):
        def put(self, key: str, data: bytes) -> None:
            self.delete([key])
            super().put(key, data)

    found = _probe_bucket(Careless(tmp_path), "it")
    assert not found.ok
    assert "If-None-Match" in found.fix
    assert _probe_bucket(FileBucket(tmp_path), "it").ok


def test_a_bucket_in_a_directory_is_not_made(postgres: Shared, tmp_path: Path) -> None:
    found = looked(f"{shared().url()}&bucket=file://{tmp_path}/bucket", tmp_path)
    assert found["bucket"].ok
    assert found["valkey"].ok
    assert not (tmp_path / "bucket").exists()


def test_a_cache_directory_that_cannot_be_created_is_reported(
    postgres: Shared, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    found = looked(f"{shared().url()}&bucket=file://{tmp_path}/bucket", tmp_path)["cache"]
    assert not found.ok
    assert "XDG_CACHE_HOME" in found.fix
