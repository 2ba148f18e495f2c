"""The order of a backup while a session goes on: the database first, then the bucket."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.fixtures.postgres import Shared, new_schema, programs, shared

from ortet.config.environment import open_hub
from ortet.errors import Corrupt
from ortet.hub.hub import Hub
from ortet.server.session_pool.tenants import tenant_store


@pytest.fixture
def databases(postgres: Shared) -> Iterator[list[str]]:
    names = [new_schema() for _ in range(2)]
    with psycopg.connect(shared().url(), autocommit=True) as admin:
        for name in names:
            admin.execute(f"CREATE DATABASE {name}")
        yield [shared().url(name) for name in names]
        for name in names:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def opened(place: Path, database: str, bucket: str) -> Hub:
    environ = {**os.environ, "XDG_CACHE_HOME": str(place / f"cache-{bucket}")}
    return open_hub(f"{database}&bucket=file://{place}/{bucket}", environ=environ)


def run(name: str, *args: str) -> None:
    subprocess.run([programs() / name, *args], check=True, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("database_first", [True, False])
def test_backup_verifies_only_if_the_database_is_dumped_before_the_bucket(
    tmp_path: Path, databases: list[str], database_first: bool
) -> None:
    source, target = databases
    dump = str(tmp_path / "dump")

    def dump_database() -> None:
        run("pg_dump", "--format=custom", "--schema=ortet", f"--file={dump}", source)

    def copy_bucket() -> None:
        shutil.copytree(tmp_path / "bucket", tmp_path / "copy")

    steps = [dump_database, copy_bucket] if database_first else [copy_bucket, dump_database]
    with opened(tmp_path, source, "bucket") as hub, hub.session("s") as s:
        s.say("user", "before")
        s.commit("before")
        steps[0]()
        s.say("user", "between")
        s.commit("between")
        steps[1]()
    run("pg_restore", "--no-owner", "--exit-on-error", f"--dbname={target}", dump)
    with opened(tmp_path, target, "copy") as hub:
        if database_first:
            assert hub.verify().commits == 1
            assert [m.content for m in hub.get("s").messages()] == ["before"]
        else:
            with pytest.raises(Corrupt):
                hub.verify()


def test_pg_dump_command_of_the_guide_includes_tenant_schemas(
    tmp_path: Path, databases: list[str]
) -> None:
    """Whose stores lie in schemas of their own."""
    source, target = databases
    guide = (Path(__file__).parents[2] / "docs/guide/scale-out.md").read_text()
    command = next(line[2:] for line in guide.splitlines() if line.startswith("$ pg_dump "))
    for name in ("", "acme"):
        url = tenant_store(f"{source}&bucket=file://{tmp_path}/bucket", name)
        environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        with open_hub(url, environ=environ) as hub, hub.session("s") as s:
            s.say("user", f"of {name}")
            s.commit("c")
    path = f"{programs()}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "DATABASE": source}
    subprocess.run(["sh", "-c", command], env=environ, cwd=tmp_path, check=True)
    dump = str(tmp_path / "store.dump")
    run("pg_restore", "--no-owner", "--exit-on-error", f"--dbname={target}", dump)
    for name in ("", "acme"):
        url = tenant_store(f"{target}&bucket=file://{tmp_path}/bucket", name)
        with open_hub(url, create=False, environ={"XDG_CACHE_HOME": str(tmp_path / "new")}) as hub:
            assert [m.content for m in hub.get("s").messages()] == [f"of {name}"]
            assert not hub.verify().problems
