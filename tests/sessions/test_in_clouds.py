"""A store in PostgreSQL with its bucket in Azure or in Google's cloud, from several hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.fixtures.clouds import Cloud
from tests.fixtures.postgres import Shared, drop_schema, new_schema, shared
from tests.fixtures.stores import OpenAs

from ortet.objects.base import Kind
from ortet.objects.gc import sweep_remote


@pytest.fixture(params=["remote", "local"])
def url(postgres: Shared, cloud: Cloud, request: pytest.FixtureRequest) -> Iterator[str]:
    schema = new_schema()
    bucket = quote(cloud.url(f"{schema}/Store"), safe="")
    yield f"{shared().url()}&schema={schema}&bucket={bucket}&durable={request.param}"
    drop_schema(shared().url(), schema)


def test_sessions_forks_files_and_sweep_work_across_hosts_with_a_cloud_bucket(
    host: OpenAs, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_remote, "GRACE", -60.0)  # packs may go at once
    big = os.urandom(400_000)
    one = host("one")
    with one.session("s") as s, one.workspace(work, name="w") as files:
        s.say("user", "the door is green")
        (work / "big").write_bytes(big)
        files.commit("with a big file")
        then = s.commit("first")
        s.say("user", "the door is red")
        s.commit("second")
        (kid,) = s.fork(machine=False)
        kid.say("user", "only in the fork")
        kid.pause()
        with one.store.writing():  # what no head and no event leads to
            garbage = one.objects.put(Kind.BLOB, os.urandom(50_000))
            one.objects.flush()
    with one.objects.with_durability("remote"):
        pass  # waits until the bucket has everything that is queued: close() does not
    one.close()
    two = host("two")
    with two.session("s") as s:
        assert [m.content for m in s.messages()] == ["the door is green", "the door is red"]
        s.restore(then.oid)
        assert [m.content for m in s.messages()] == ["the door is green"]
    assert two.get(kid.name).messages()[-1].content == "only in the fork"
    two.sweep(min_garbage=0.0, expire_ns=0)
    two.close()
    three = host("three")
    assert not three.verify().problems
    assert not three.objects.find_by_prefix(garbage.hex())
    three.restore("w", to=tmp_path / "out")
    assert (tmp_path / "out/big").read_bytes() == big
