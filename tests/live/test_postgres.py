"""A PostgreSQL server with data: a server of many processes, shared memory and a log of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.live.lives import Life, told, until

from ortet.sessions.session import Session

_DATA, _PORT = "/var/lib/postgresql/live", 5433
_PSQL = f"psql -h /tmp -p {_PORT} -U postgres -At"


@pytest.fixture
def programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    assert found, "no PostgreSQL is installed: scripts/test-tools installs it"
    return found[-1].parent


def query(session: Session, sql: str) -> str:
    return told(session, f'{_PSQL} -v ON_ERROR_STOP=1 -c "{sql}"')


@pytest.fixture
def session(life: Life, programs: Path) -> Session:
    session = life.begin()
    made = f"{programs}/initdb -D {_DATA} -A trust -E UTF8 --no-sync"
    told(session, f"su postgres -c '{made}'")
    server = f"exec {programs}/postgres -D {_DATA} -k /tmp -p {_PORT} -c listen_addresses=127.0.0.1"
    session.spawn("postgres", ["su", "postgres", "-c", server])
    until(session, f"{_PSQL} -c 'select 1'")
    query(session, "create table t as select g, 'seeded' as said from generate_series(1, 5000) g")
    return session


@pytest.mark.slow
def test_each_copy_of_a_postgres_server_can_be_queried_and_written(
    life: Life, session: Session
) -> None:
    # a client in a transaction: what it did not commit is part of the state too
    client = session.spawn("client", f"exec {_PSQL}", stdin=True)
    client.write(b"begin; insert into t values (0, 'open'); select 'begun';\n")
    until(session, f"{_PSQL} -c \"select state from pg_stat_activity\" | grep 'in transaction'")
    rounds = dict.fromkeys(("first", "second", "original", "restored"), 0)

    def use(copy: Session, mark: str) -> None:
        assert (
            query(copy, "select count(*), sum(g) from t where said = 'seeded'") == "5000|12502500"
        )
        assert query(copy, "select distinct said from t where g < 0") == (
            mark if rounds[mark] else ""
        )
        rounds[mark] += 1
        query(copy, f"insert into t values (-{rounds[mark]}, '{mark}')")
        assert query(copy, f"select count(*) from t where said = '{mark}'") == str(rounds[mark])
        assert query(copy, "select count(*) from t where said = 'open'") == str(rounds[mark] - 1)
        if rounds[mark] == 1:
            copy.programs.job("client").write(b"commit;\n")
            until(copy, f'{_PSQL} -c "select said from t where g = 0" | grep open')

    restored = life.all_of_it(session, use)
    query(restored, "create index on t (g); checkpoint")
    assert query(restored, "select said from t where g = 4999") == "seeded"
