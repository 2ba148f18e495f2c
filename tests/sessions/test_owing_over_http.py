"""Commits of a remote hub that are on its own disk yet: the server and other clients say whose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.fixtures.remote_hub import serving
from tests.fixtures.waiting import eventually

from ortet.backends.object_storage.pending_uploads import list_pending_uploads
from ortet.backends.remote.bucket import HttpBucket
from ortet.config.environment import open_hub
from ortet.errors import Unavailable

pytestmark = pytest.mark.server


def test_commit_not_yet_uploaded_by_a_client_names_its_host_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def environ(name: str) -> dict[str, str]:
        return {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / name)}

    def refuse(*_: object) -> None:
        raise Unavailable("no_answer", "the line is down")

    with (
        serving(tmp_path / "store") as url,
        open_hub(url, environ=environ("one")) as one,
        open_hub(url, environ=environ("two")) as two,
        open_hub(tmp_path / "store", environ=environ("server")) as server,
    ):
        with monkeypatch.context() as down, one.session("s") as s:
            s.say("user", "first")
            s.commit("first")
            down.setattr(HttpBucket, "put_file", refuse)
            s.say("user", "second")
            late = s.commit("second", durable="local").oid
            assert one.objects.queued().objects
            assert [owes.host for owes in list_pending_uploads(server.catalog).values()] == [
                os.uname().nodename
            ]
            for other in (two, server):
                with pytest.raises(Unavailable) as caught:
                    other.restore(late, to=tmp_path / "early")
                assert caught.value.kind == "not_uploaded_yet"
                assert os.uname().nodename in caught.value.message
        eventually(lambda: not list_pending_uploads(server.catalog))
        for other in (two, server):
            assert [m.content for m in other.get("s").messages()] == ["first", "second"]
        assert not server.verify().problems
