"""A program's own kinds of events: versioned, read through upcasts, kept wherever it goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ortet
from ortet.errors import Diverged, Invalid
from ortet.hub.hub import Hub
from ortet.journal import upcasts

KIND = "myapp.ticket"


@pytest.fixture
def newer() -> Iterator[None]:
    @ortet.upcast(KIND, 1)
    def titled(data: dict[str, Any]) -> dict[str, Any]:
        return {"title": data["name"], "open": True}

    yield
    upcasts.unregister(KIND, 1)


def test_custom_records_are_stored_and_listed_by_kind(hub: Hub) -> None:
    with hub.session("s") as s:
        event = s.record(KIND, {"title": "a"}, version=2)
        s.record("other.app", {"x": [1]})
        assert (event.kind, event.version, event.data) == (KIND, 2, {"title": "a"})
        assert [one.data for one in s.records(KIND)] == [{"title": "a"}]
        assert [one.kind for one in s.records()] == [KIND, "other.app"]
        assert s.commit() == s.head


@pytest.mark.usefixtures("newer")
def test_older_record_versions_are_upcast_when_read(hub: Hub) -> None:
    with hub.session("s") as s:
        s.record(KIND, {"name": "a"})
        s.record(KIND, {"title": "b", "open": False}, version=2)
        s.record(KIND, {"heading": "c"}, version=7)
        found = [(one.version, one.data) for one in s.records(KIND)]
        assert found == [
            (2, {"title": "a", "open": True}),
            (2, {"title": "b", "open": False}),
            (7, {"heading": "c"}),
        ]


def test_custom_records_are_kept_by_forks_bundles_and_adopt(
    hub: Hub, opened: Callable[..., Hub], tmp_path: Path, newer: None
) -> None:
    del newer
    with hub.session("s") as s:
        s.say("user", "hi")
        s.record(KIND, {"name": "a"})
        s.commit()
        s.compact(keep_last=0)
        oid = s.commit().oid
        (kid,) = s.fork()
        assert [one.version for one in kid.records()] == [2]
    hub.export(oid, tmp_path / "bundle")
    there = opened(tmp_path / "there")
    there.import_(tmp_path / "bundle")
    with there.session("s") as t:
        t.adopt(oid)
        assert [one.data["title"] for one in t.records(KIND)] == ["a"]
        there.verify()


def test_replay_checks_custom_records(hub: Hub) -> None:
    with hub.session("s") as s:
        s.record(KIND, {"title": "a"}, version=2)
    with hub.session("s", replay=True) as s:
        s.record(KIND, {"title": "a"}, version=2)
        with pytest.raises(Diverged):
            s.record(KIND, {"title": "b"}, version=2)


def test_journal_command_shows_custom_records(hub: Hub, store: Path) -> None:
    with hub.session("s") as s:
        s.record(KIND, {"title": "a"}, version=2)
    command = [sys.executable, "-m", "ortet", "journal", "s"]
    run = partial(subprocess.run, capture_output=True, text=True, check=True)
    env = {**os.environ, "ORTET_URL": str(store)}
    text = run(command, env=env).stdout
    assert f'{KIND}  {{"title":"a"}}' in text
    shown = run([*command, "--json"], env=env).stdout
    (event,) = [one for one in json.loads(shown) if one["kind"] == KIND]
    assert (event["version"], event["data"]) == (2, {"title": "a"})


@pytest.mark.parametrize("kind", ["ticket", "message", "", "My.App", "a.", ".a", "a b.c", 3, None])
def test_record_kind_without_a_program_name_is_refused(hub: Hub, kind: Any) -> None:
    with hub.session("s") as s:
        with pytest.raises(Invalid) as caught:
            s.record(kind, {})
        assert caught.value.kind == "bad_kind"
        with pytest.raises(Invalid):
            ortet.upcast(kind, 1)(lambda data: data)


@pytest.mark.parametrize(
    ("data", "version", "kind"),
    [
        ({}, 0, "bad_version"),
        ({}, True, "bad_version"),
        ([], 1, "not_json"),
        ({"x": b""}, 1, "not_json"),
    ],
)
def test_record_with_a_bad_version_or_data_is_refused(
    hub: Hub, data: Any, version: Any, kind: str
) -> None:
    with hub.session("s") as s:
        with pytest.raises(Invalid) as caught:
            s.record(KIND, data, version=version)
        assert caught.value.kind == kind
        assert s.records() == []
