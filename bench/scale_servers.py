"""The servers of the scale part, from wheels: PostgreSQL with its syncs, SeaweedFS as S3, Valkey.
They are those of the tests, with the memory and the vacuum that a server has."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import msgspec
import obstore
import psycopg
from obstore.store import S3Store

ROOT = Path(__file__).resolve().parent.parent
BUCKET = "ortet"
SETTINGS = {
    "autovacuum": "on",
    "checkpoint_timeout": "15min",
    "max_connections": "100",
    "max_wal_size": "8GB",
    "shared_buffers": "512MB",
}


class Servers(msgspec.Struct, frozen=True):
    """`socket` is PostgreSQL's; `endpoint` S3's; `signal` Valkey's address."""

    socket: str
    endpoint: str
    signal: str

    def database(self, name: str) -> str:
        return f"postgresql://postgres@/{name}?host={self.socket}"

    def made(self, name: str) -> str:
        """A new database."""
        with psycopg.connect(self.database("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
        return self.database(name)

    def store(self, name: str, database: str = "ortet") -> str:
        """The address of a store of ours: a schema and a prefix of its own."""
        bucket = quote(f"s3://{BUCKET}/{name}?endpoint={self.endpoint}", safe="")
        return (
            f"{self.database(database)}&bucket={bucket}&signal={quote(self.signal, safe='')}"
            f"&schema={name}&connections=32"
        )

    def database_bytes(self, name: str) -> int:
        with psycopg.connect(self.database(name), autocommit=True) as connection:
            connection.execute("CHECKPOINT")
            row = connection.execute("SELECT pg_database_size(%s)", (name,)).fetchone()
        assert row is not None
        return int(row[0])

    def backends_cpu(self, name: str) -> float:
        """Microseconds of all processes that serve a database at this moment."""
        asked = "SELECT pid FROM pg_stat_activity WHERE datname = %s"
        with psycopg.connect(self.database("postgres")) as connection:
            pids = [pid for (pid,) in connection.execute(asked, (name,)).fetchall()]
        spent = 0
        for pid in pids:
            with suppress(OSError):  # one that has ended meanwhile
                spent += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
        return spent / 1000

    def bucket_objects(self, name: str) -> list[int]:
        """Sizes of the objects of a store."""
        store = S3Store(
            BUCKET,
            prefix=name,
            endpoint=self.endpoint,
            region="us-east-1",
            client_options={"allow_http": True},
        )
        return [found["size"] for page in obstore.list(store) for found in page]


@contextmanager
def started(place: Path) -> Iterator[Servers]:
    """None of them outlives the block."""
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    from tests.fixtures import postgres as postgres_server
    from tests.fixtures import s3 as s3_server
    from tests.fixtures import valkey as valkey_server

    kept = place / "s3"
    kept.mkdir()
    before = dict(os.environ)
    os.environ.update(s3_server.ENVIRON)
    os.environ["XDG_CACHE_HOME"] = str(place / "cache")
    postgres = postgres_server.Server(fsync=True, settings=SETTINGS)
    try:
        with s3_server.s3_server(kept) as endpoint, valkey_server.valkey_server() as valkey:
            s3_server.make_bucket(endpoint, BUCKET)
            socket = postgres.url().partition("host=")[2]
            servers = Servers(socket, endpoint, valkey.url)
            servers.made("ortet")
            yield servers
    finally:
        postgres.stop(signal.SIGINT)
        postgres.end()
        os.environ.clear()
        os.environ.update(before)
