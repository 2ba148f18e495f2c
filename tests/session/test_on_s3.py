"""Sessions of a store in PostgreSQL whose packs lie in a real S3, from two hosts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.postgres_server import drop_schema, new_schema, shared
from tests.s3_server import Proxy, make_bucket, passes, s3_server, set_environ, takes_nothing

from ortet.config import open_hub
from ortet.errors import Invalid, NotFound
from ortet.session.hub import Hub
from ortet.store.remote import RemoteObjects

Host = Callable[..., Hub]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3")) as address:
        make_bucket(address, "sessions")
        yield address


@pytest.fixture
def proxy(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    set_environ(monkeypatch)
    with Proxy(server) as proxy:
        yield proxy


@pytest.fixture
def host(tmp_path: Path, proxy: Proxy) -> Iterator[Host]:
    schema = new_schema()
    bucket = quote(f"s3://sessions/{schema}?endpoint={proxy.url}", safe="")
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


def test_files_and_words_go_from_host_to_host(host: Host, tmp_path: Path) -> None:
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


def test_a_commit_may_be_durable_here_before_it_is_there(
    host: Host, proxy: Proxy, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "file").write_text("content")
    hub = host("one", "local")
    assert isinstance(hub.objects, RemoteObjects)
    with hub.session("s", workspace=tmp_path / "work") as s:
        s.say("user", "first")
        s.commit("first")
        hub.objects.settle()
        (tmp_path / "work" / "file").write_text("changed")
        proxy.always = takes_nothing
        commit = s.commit("while the bucket is ill")
        assert hub.objects.queued().objects > 0
        with pytest.raises(NotFound):  # the head is there, and not what it names
            host("two").restore(commit.oid, to=tmp_path / "early")
        proxy.always = passes
        hub.objects.settle()
    host("two").restore(commit.oid, to=tmp_path / "out")
    assert (tmp_path / "out" / "file").read_text() == "changed"


def test_how_durable_is_one_of_two(host: Host) -> None:
    with pytest.raises(Invalid) as caught:
        host("one", "perhaps")
    assert caught.value.kind == "bad_url"
