"""Sessions of a store in PostgreSQL with a bucket beside it, from several hosts: a cache directory
of its own makes a process another host."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from tests.fixtures import forked
from tests.fixtures.postgres import Shared, drop_schema, new_schema, shared
from tests.fixtures.stores import OpenAs, host_environ
from tests.fixtures.waiting import WAIT

from ortet.config.environment import open_hub
from ortet.errors import Invalid, NotFound, Refused
from ortet.sessions.writing import lease_handover
from ortet.testing.clock import ManualClock


def test_a_session_goes_from_host_to_host(host: OpenAs) -> None:
    with host("one").session("s", goal="move") as s:
        s.say("user", "the door is green")
        then = s.commit("first")
        s.say("user", "the door is red")
    other = host("two")
    with other.session("s") as s:
        assert [m.content for m in s.messages()] == ["the door is green", "the door is red"]
        s.say("assistant", "so it is")
        s.commit("second")
        (kid,) = s.fork(machine=False)
        kid.say("user", "only in the fork")
        kid.pause()
        s.restore(then.oid)
        assert [m.content for m in s.messages()] == ["the door is green"]
        found = s.recall("door")
        assert any("green" in one.text for one in found)
    with host("one").session(kid.name) as s:
        assert [m.content for m in s.messages()][-1] == "only in the fork"
    assert other.catalog.check() == []


def test_a_hub_is_shown_without_its_options(host: OpenAs) -> None:
    hub = host("one")
    assert "?" in hub.url
    assert "?" not in repr(hub)


def test_session_request_is_seen_and_expires_despite_clock_skew(
    host: OpenAs, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lender = host("one")
    requests = lease_handover.LeaseRequests(lender.store)
    ahead = ManualClock(lender.clock.now_ns() + 600 * 10**9)
    with open_hub(url, environ=host_environ(tmp_path, "two"), clock=ahead) as asker:
        with lease_handover.LeaseRequest(asker.store, "some") as request:
            request.send()
            assert requests.requested_sessions() == set()  # a signal comes first
            request.send()
            assert requests.requested_sessions() == {"some"}
        assert requests.requested_sessions() == set()
        request = lease_handover.LeaseRequest(asker.store, "gone")
        request.send()
        request.send()  # and it dies
    assert requests.requested_sessions() == {"gone"}
    monkeypatch.setattr(lease_handover, "_STALE_REQUEST_SECONDS", 0.0)
    assert requests.requested_sessions() == set()
    assert lender.catalog.rows("wanted") == []


def test_files_go_from_host_to_host(host: OpenAs, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "file").write_text("content " * 1000)
    with host("one").session("s", workspace=tmp_path / "work") as s:
        commit = s.commit("with files")
    host("two").restore(commit.oid, to=tmp_path / "out")
    assert (tmp_path / "out" / "file").read_text() == "content " * 1000


def test_second_host_is_refused_while_a_session_is_open(host: OpenAs) -> None:
    with host("one").session("s") as s:
        s.say("user", "mine")
        with pytest.raises(Refused) as caught:
            host("two").session("s")
        assert caught.value.kind == "lease_held"
    with host("two").session("s") as s:
        assert len(s.messages()) == 1


_WRITER = """
import sys, ortet
s = ortet.open(sys.argv[1]).session("s")
for number in range(3):
    s.say("user", str(number))
print("said", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["one", "two"])
def test_messages_before_kill_9_are_kept_when_the_lease_is_taken_over(
    host: OpenAs, tmp_path: Path, url: str, schema: str, name: str
) -> None:
    writer = forked.Popen(
        [sys.executable, "-c", _WRITER, url],
        env=host_environ(tmp_path, "one"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"said\n"
        with pytest.raises(Refused):
            host(name).session("s")
        writer.send_signal(signal.SIGKILL)
        writer.wait(WAIT)
    if name != "one":  # another host cannot know; it waits for the end of the lease, which we hurry
        with pytest.raises(Refused):
            host(name).session("s")
        with psycopg.connect(shared().url(), autocommit=True) as connection:
            connection.execute(f'UPDATE "{schema}".leases SET expires = expires - 30000000000')
    with host(name).session("s") as s:
        assert [m.content for m in s.messages()] == ["0", "1", "2"]
        s.say("user", "3")


def test_a_bucket_belongs_to_one_store(tmp_path: Path, url: str, schema: str, host: OpenAs) -> None:
    with host("one").session("s") as s:
        s.commit("c")
    other = new_schema()
    try:
        with pytest.raises(Invalid) as caught:
            open_hub(url.replace(schema, other), environ=host_environ(tmp_path, "one"))
        assert caught.value.kind == "wrong_bucket"
    finally:
        drop_schema(shared().url(), other)


@pytest.mark.parametrize("old", [False, True], ids=["new", "made_before"])
def test_a_store_belongs_to_one_bucket(
    tmp_path: Path, url: str, schema: str, host: OpenAs, *, old: bool
) -> None:
    """A typing error in its prefix, and no host would find what another commits."""
    with host("one").session("s") as s:
        s.commit("c")
    if old:  # before the place was written down
        with psycopg.connect(shared().url(), autocommit=True) as connection:
            connection.execute(f"DELETE FROM \"{schema}\".records WHERE key = 'bucket'")
    wrong = url.replace("/bucket", "/bukcet")
    assert wrong != url
    for name in ("one", "two"):
        with pytest.raises(Invalid, match="correct bucket=") as caught:
            open_hub(wrong, environ=host_environ(tmp_path, name))
        assert caught.value.kind == "wrong_bucket"
    with host("two").session("s") as s:
        s.commit("d")


def test_unmounted_bucket_directory_is_refused_by_a_known_host(
    tmp_path: Path, url: str, host: OpenAs
) -> None:
    """An empty directory in its place is not filled by a host that knew the full one."""
    with host("one").session("s") as s:
        s.commit("c")
    (tmp_path / "bucket").rename(tmp_path / "unmounted")
    with pytest.raises(Invalid, match="has to be mounted") as caught:
        open_hub(url, environ=host_environ(tmp_path, "one"))
    assert caught.value.kind == "wrong_bucket"
    shutil.rmtree(tmp_path / "bucket")
    (tmp_path / "unmounted").rename(tmp_path / "bucket")
    with host("one").session("s") as s:
        s.commit("d")


def test_opening_without_create_makes_no_store(tmp_path: Path, url: str) -> None:
    with pytest.raises(NotFound) as caught:
        open_hub(url, create=False, environ=host_environ(tmp_path, "one"))
    assert caught.value.kind == "no_store"


def test_a_bucket_must_be_named(postgres: Shared, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="bucket=") as caught:
        open_hub(shared().url(), environ=host_environ(tmp_path, "one"))
    assert caught.value.kind == "bad_url"


@pytest.mark.parametrize("url", ["postgresql://a:secret@h/d", "postgresql://h/d?password=secret"])
def test_a_password_is_kept_out_of_addresses(tmp_path: Path, url: str) -> None:
    with pytest.raises(Invalid, match="PGPASSWORD") as caught:
        open_hub(url, environ=host_environ(tmp_path, "one"))
    assert "secret" not in caught.value.message


def test_missing_postgres_driver_names_the_package_to_install() -> None:
    """Without the driver, which is hidden from a process of its own."""
    code = """
import sys
sys.modules["psycopg"] = None
import ortet, ortet.errors
try:
    ortet.open("postgresql://localhost/x?bucket=file:///tmp/x")
except ortet.errors.Unsupported as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=WAIT
    )
    assert 'pip install "ortet[postgres]"' in done.stdout
