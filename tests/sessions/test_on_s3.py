"""Sessions of a store in PostgreSQL whose packs lie in a real S3, from two hosts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.fixtures import forked
from tests.fixtures.postgres import Shared, drop_schema, new_schema, shared
from tests.fixtures.s3 import Proxy, passes, takes_no_packs, takes_nothing
from tests.fixtures.waiting import WAIT, eventually

from ortet.backends.object_storage import upload_queue
from ortet.backends.object_storage.pending_uploads import PendingUploadTable, list_pending_uploads
from ortet.config.environment import open_hub
from ortet.errors import Invalid, NotFound, Unavailable
from ortet.hub.hub import Hub
from ortet.ids import from_hex

_UPLOAD = 120.0
"""Seconds to wait for an upload: one that is under way takes half a minute to fail."""

Host = Callable[..., Hub]


@pytest.fixture
def host(postgres: Shared, tmp_path: Path, proxy: Proxy) -> Iterator[Host]:
    schema = new_schema()
    bucket = quote(f"s3://ortet/{schema}?endpoint={proxy.url}", safe="")
    hubs: list[Hub] = []

    def opened(name: str, durable: str = "remote") -> Hub:
        url = f"{shared().url()}&schema={schema}&bucket={bucket}&durable={durable}"
        environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / name)}
        hubs.append(open_hub(url, environ=environ))
        return hubs[-1]

    yield opened
    for hub in hubs:
        hub.close()
    drop_schema(shared().url(), schema)


def test_files_and_messages_committed_on_one_host_are_read_on_another(
    host: Host, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "file").write_bytes(os.urandom(2_000_000))
    with host("one").session("s", workspace=tmp_path / "work") as s:
        s.say("user", "the door is green")
        commit = s.commit("with files")
    other = host("two")
    other.restore(commit.oid, to=tmp_path / "out")
    before = (tmp_path / "work" / "file").read_bytes()
    assert (tmp_path / "out" / "file").read_bytes() == before
    assert [m.content for m in other.session("s").messages()] == ["the door is green"]


def test_local_commit_is_readable_elsewhere_only_after_its_upload(
    host: Host, proxy: Proxy, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "file").write_text("content")
    hub = host("one", "local")
    other = host("two")
    with hub.session("s", workspace=tmp_path / "work") as s:
        s.say("user", "first")
        s.commit("first")
        hub.objects.wait_for_uploads()
        (tmp_path / "work" / "file").write_text("changed")
        proxy.always = takes_nothing
        commit = s.commit("while the bucket is ill")
        assert hub.objects.queued().objects > 0
        for ref in (commit.oid, s.internals.row.branch):  # the head is there, and not what it names
            with pytest.raises(Unavailable) as caught:
                other.restore(ref, to=tmp_path / "early")
            assert caught.value.kind == "not_uploaded_yet"
            assert os.uname().nodename in caught.value.message
        proxy.always = passes
        hub.objects.wait_for_uploads()
    other.restore(commit.oid, to=tmp_path / "out")
    assert (tmp_path / "out" / "file").read_text() == "changed"


def test_durable_option_of_a_commit_overrides_the_default(
    host: Host, proxy: Proxy, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "file").write_text("content")
    hub = host("one")  # where commits are in the bucket, if nothing is said
    with hub.session("s", workspace=tmp_path / "work") as s:
        s.commit("there")
        assert not hub.objects.queued().objects
        proxy.always = takes_nothing
        s.say("user", "second")
        local = s.commit("here", durable="local")
        (tmp_path / "work" / "file").write_text("changed")
        files = s.machine.commit("here too", durable="local")
        queued = hub.objects.queued()
        assert (queued.objects, queued.bytes > 0) == (2, True)
        assert hub.catalog.rows("uploads")
        proxy.always = passes
        assert s.commit("nothing new, and waits", durable="remote").oid == files.oid
        assert not hub.objects.queued().objects
    other = host("two")
    other.restore(files.oid, to=tmp_path / "out")
    assert (tmp_path / "out" / "file").read_text() == "changed"
    assert other.history.info(from_hex(local.oid)).message == "here"


def test_upload_marker_is_removed_after_the_upload(
    host: Host, proxy: Proxy, tmp_path: Path
) -> None:
    hub, other = host("one"), host("two")
    strange = "ab" * 32
    with hub.session("s") as s:
        proxy.always = takes_nothing
        s.say("user", "first")
        s.commit(durable="local")
        with pytest.raises(Unavailable):  # for all that it knows
            other.restore(strange, to=tmp_path / "out")
        with pytest.raises(NotFound):  # who owes it has it
            hub.restore(strange, to=tmp_path / "out")
        proxy.always = passes
        hub.close()  # which does not wait for all: whoever opens the store next goes on
    host("one")
    eventually(lambda: not other.catalog.rows("uploads"))
    with pytest.raises(NotFound):
        other.restore(strange, to=tmp_path / "out")
    assert [m.content for m in other.session("s").messages()] == ["first"]


def test_commits_one_after_the_other_are_owed_once(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_queue, "_QUIET_SECONDS", WAIT)
    hub, other = host("one"), host("two")
    told: list[str] = []
    for verb in ("announce", "clear"):
        real = getattr(PendingUploadTable, verb)

        def call(*args: Any, verb: str = verb, real: Any = real) -> None:
            if len(args) == 1:  # and not which commits
                told.append(verb)
            real(*args)

        monkeypatch.setattr(PendingUploadTable, verb, call)
    with hub.session("s") as s:
        for number in range(3):
            s.say("user", str(number))
            s.commit(durable="local")
            eventually(lambda: not hub.objects.queued().objects, _UPLOAD)
        assert told == ["announce"]
        assert list_pending_uploads(other.catalog)
    hub.close()
    assert told == ["announce", "clear"]
    assert not list_pending_uploads(other.catalog)


@pytest.mark.slow
def test_missing_commit_error_names_the_commit_and_the_host_that_owes_it(
    host: Host, proxy: Proxy, tmp_path: Path
) -> None:
    hub, other = host("one"), host("two")
    with hub.session("s") as s:
        s.say("user", "first")
        s.commit("first")
        proxy.always = takes_nothing
        s.say("user", "second")
        late = s.commit("second", durable="local").oid
        eventually(
            lambda: any(
                late in owes.commits for owes in list_pending_uploads(other.catalog).values()
            )
        )
        with pytest.raises(Unavailable) as caught:
            other.restore("s", to=tmp_path / "early")
        assert f"commit {late[:12]} was made on {os.uname().nodename}" in caught.value.message
        with pytest.raises(Unavailable) as caught:  # which nobody has named
            other.restore("ab" * 32, to=tmp_path / "early")
        assert "not everything" in caught.value.message
        proxy.always = passes
        s.commit(durable="remote")
    eventually(lambda: not list_pending_uploads(other.catalog), _UPLOAD)
    assert [m.content for m in other.session("s").messages()] == ["first", "second"]


@pytest.mark.slow
def test_a_host_that_is_lost_is_given_up_and_one_that_comes_back_goes_on(
    host: Host, proxy: Proxy, tmp_path: Path
) -> None:
    hub, other = host("one"), host("two")
    with hub.session("s") as s:
        s.say("user", "first")
        s.commit("first")
        proxy.always = takes_no_packs
        s.say("user", "second")
        late = s.commit("second", durable="local").oid
        eventually(
            lambda: any(
                late in owes.commits for owes in list_pending_uploads(other.catalog).values()
            )
        )

    def doctor(*words: str, code: int) -> Any:
        done = forked.run(
            [sys.executable, "-m", "ortet", "doctor", "--json", *words],
            env={**os.environ, "ORTET_URL": other.url, "XDG_CACHE_HOME": str(tmp_path / "two")},
            capture_output=True,
            check=False,
            text=True,
            cwd=tmp_path,
        )
        assert done.returncode == code
        return json.loads(done.stdout or done.stderr)

    told = doctor(code=0)
    assert [(one["host"], one["commits"]) for one in told["late"]] == [
        (os.uname().nodename, [late])
    ]
    assert "nobody" in doctor("--give-up", "nobody", code=4)["message"]
    proxy.always = takes_nothing
    with ThreadPoolExecutor() as pool:  # each waits some seconds for the bucket
        ill = pool.submit(doctor, code=7)
        assert doctor("--give-up", os.uname().nodename, code=0)["given_up"]  # all the same
        assert "bucket" in [one["name"] for one in ill.result()["capabilities"] if not one["ok"]]
    proxy.always = takes_no_packs
    assert doctor(code=0)["late"] == []
    with pytest.raises(NotFound):  # it is lost
        other.restore(late, to=tmp_path / "out")
    proxy.always = passes
    host("one")  # and it is not: the disk was still there
    eventually(lambda: other.objects.find_by_prefix(late[:20]), _UPLOAD)
    assert [m.content for m in other.session("s").messages()] == ["first", "second"]


def test_commit_with_an_unknown_durable_value_is_refused(host: Host, tmp_path: Path) -> None:
    for hub in (host("one"), open_hub(str(tmp_path / "store"))):
        with hub, hub.session("s") as s, pytest.raises(Invalid) as caught:
            s.commit("x", durable="perhaps")  # type: ignore[arg-type]
        assert caught.value.kind == "bad_durable"


def test_single_host_store_accepts_both_durable_values(tmp_path: Path) -> None:
    with open_hub(str(tmp_path / "store")) as hub, hub.session("s") as s:
        for durable in ("remote", "local"):
            s.say("user", durable)
            s.commit(durable=durable)
        assert not hub.objects.queued().objects


def test_url_with_an_unknown_durability_is_refused(host: Host) -> None:
    with pytest.raises(Invalid) as caught:
        host("one", "perhaps")
    assert caught.value.kind == "bad_url"


def test_the_command_line_tells_what_waits(host: Host, proxy: Proxy, tmp_path: Path) -> None:
    hub = host("one")
    environ = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "one"),
        "ORTET_URL": hub.url,
        "ORTET_AGENT": "off",
    }
    with hub.session("s") as s:
        proxy.always = takes_nothing
        s.say("user", "first")
        s.commit(durable="local")
        for words in (["stats", "--json"], ["stats"]):
            told = forked.run(
                [sys.executable, "-m", "ortet", *words],
                env=environ,
                cwd=tmp_path,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            if words[-1] == "--json":
                assert json.loads(told)["queued"]["objects"] == 1
            else:
                assert "queued  1 pack, " in told
        proxy.always = passes
        s.commit(durable="remote")
