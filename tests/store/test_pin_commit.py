"""Commits that only their ids lead to, named while another host's sweep is about to take them, at
each point of it: what is named is whole afterwards, or was refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.stores import OpenAs

from ortet.config.environment import open_hub
from ortet.errors import NotFound
from ortet.hub.hub import Hub
from ortet.ids import from_hex
from ortet.objects.base import Kind
from ortet.objects.gc import sweep_remote
from ortet.sessions.history.fork_session import fork_at, fork_behind

pytestmark = pytest.mark.usefixtures("no_grace")

DATA = os.urandom(50_000)
POINTS = ["sweep.after-marks", "sweep.after-epoch", "sweep.before-delete"]


def at_point(monkeypatch: pytest.MonkeyPatch, point: str, deed: Callable[[], object]) -> None:
    """Have a sweep of this process do it when it comes there."""

    todo = [deed]

    def reach(name: str) -> None:
        if name == point and todo:
            todo.pop()()

    monkeypatch.setattr(sweep_remote, "failpoint", reach)


def lost_commit(hub: Hub, tmp_path: Path) -> str:
    """Of mind and files; a sweep that lets the reflog go finds nothing that leads to it."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "data").write_bytes(DATA)
    with hub.session("lost", workspace=work, engine="folder") as s:
        first = s.commit("first")
        (work / "only").write_bytes(DATA[::-1])
        s.say("user", "remember me")
        lost = s.commit("second")
        s.restore(first.oid)
    return lost.oid


def restore_mind(hub: Hub, oid: str, tmp_path: Path) -> None:
    del tmp_path
    with hub.session("b") as s:
        s.say("user", "hello")
        s.restore(oid)
        assert [m.content for m in s.messages()] == ["remember me"]


def restore_mind_only(hub: Hub, oid: str, tmp_path: Path) -> None:
    del tmp_path
    with hub.session("b") as s:
        s.restore(oid, only={"mind"})
        assert [m.content for m in s.messages()] == ["remember me"]


def restore_files(hub: Hub, oid: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with hub.workspace(tmp_path / "other", name="other") as workspace:
        workspace.restore(oid)
    assert (tmp_path / "other" / "only").read_bytes() == DATA[::-1]


def adopt(hub: Hub, oid: str, tmp_path: Path) -> None:
    del tmp_path
    with hub.session("b") as s:
        s.adopt(oid)


def merge(hub: Hub, oid: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with hub.workspace(tmp_path / "other", name="other") as workspace:
        workspace.commit("empty")
        workspace.merge(oid)
    assert (tmp_path / "other" / "only").read_bytes() == DATA[::-1]


def merge_minds(hub: Hub, oid: str, tmp_path: Path) -> None:
    del tmp_path
    with hub.session("b") as s:
        s.say("user", "hello")
        s.merge(oid)


def fork(hub: Hub, oid: str, tmp_path: Path) -> None:
    del tmp_path
    with hub.session("b") as s:
        s.say("user", "hello")
        (one,) = fork_at(s, from_hex(oid), names=["child"])
        assert [m.content for m in one.messages()] == ["remember me"]
        one.close()


def fork_files(hub: Hub, oid: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with hub.workspace(tmp_path / "other", name="other") as workspace:
        workspace.commit("empty")
        (copy,) = hub.workspaces.fork(workspace.row, None, from_hex(oid), 1)
        copy.close()


def branch(hub: Hub, oid: str, tmp_path: Path) -> None:
    del tmp_path
    hub.refs.create("kept", from_hex(oid))


VERBS = [
    *(restore_mind, restore_mind_only, restore_files, adopt, merge, merge_minds, fork),
    *(fork_files, branch),
]


@pytest.mark.parametrize("verb", VERBS)
def test_commit_named_just_before_deletion_survives_a_concurrent_sweep(
    host: OpenAs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Callable[..., None]
) -> None:
    one, two = host("one"), host("two")
    oid = lost_commit(one, tmp_path)
    two.show(oid)  # so that it knows the commit itself
    at_point(monkeypatch, "sweep.before-delete", lambda: verb(two, oid, tmp_path))
    assert one.sweep(min_garbage=0.0, expire_ns=0).packs_removed > 0
    assert not host("three").verify().problems
    host("four").restore(oid, to=tmp_path / "out")
    assert (tmp_path / "out" / "only").read_bytes() == DATA[::-1]


@pytest.mark.parametrize("point", POINTS)
def test_branch_created_at_any_point_of_a_sweep_stays_restorable(
    host: OpenAs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    one, two = host("one"), host("two")
    oid = lost_commit(one, tmp_path)
    two.show(oid)
    at_point(monkeypatch, point, lambda: branch(two, oid, tmp_path))
    one.sweep(min_garbage=0.0, expire_ns=0)
    fresh = host("three")
    assert not fresh.verify().problems
    fresh.restore("kept", to=tmp_path / "out")
    assert (tmp_path / "out" / "only").read_bytes() == DATA[::-1]
    one.sweep(min_garbage=0.0, expire_ns=0)
    assert not host("four").verify().problems


@pytest.mark.parametrize("verb", VERBS)
def test_naming_a_commit_after_it_was_swept_is_refused(
    host: OpenAs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Callable[..., None]
) -> None:
    """Nor what is there in parts: then a branch would lead to a commit that cannot be restored."""
    one, two = host("one"), host("two")
    oid = lost_commit(one, tmp_path)
    two.show(oid)
    failed: list[str] = []

    def late() -> None:
        with pytest.raises(NotFound) as caught:
            verb(two, oid, tmp_path)
        failed.append(caught.value.kind)

    at_point(monkeypatch, "sweep.after-delete", late)
    one.sweep(min_garbage=0.0, expire_ns=0)
    assert len(failed) == 1
    assert not host("three").verify().problems
    assert [head.name for head in two.refs.branches() if head.oid.hex() == oid] == []


def pull(hub: Hub, oid: str, tmp_path: Path) -> None:
    del oid
    with open_hub(tmp_path / "elsewhere", environ={"HOME": str(tmp_path)}) as other:
        with other.session("far") as s:
            s.say("user", "from afar")
            s.commit("there")
        hub.pull(other)


def import_(hub: Hub, oid: str, tmp_path: Path) -> None:
    hub.export(oid, tmp_path / "bundle")
    assert list(hub.import_(tmp_path / "bundle").values()) == [oid]


def behind(hub: Hub, oid: str, tmp_path: Path) -> None:
    del oid, tmp_path
    with hub.session("b") as s:
        seq = s.say("user", "one").seq
        s.say("user", "two")
        (one,) = fork_behind(s, seq, names=["child"])
        assert [m.content for m in one.messages()] == ["one"]
        one.close()
        whatif = hub.whatif(s, seq, message="another")
        assert [m.content for m in whatif.messages()] == ["another"]
        whatif.close()


def record(hub: Hub, oid: str, tmp_path: Path) -> None:
    del oid
    (tmp_path / "file").write_bytes(DATA)
    with hub.session("b") as s:
        with open(tmp_path / "file", "rb") as file:
            s.artifact("opened", data=file)
        s.artifact("given", data=DATA)
        s.accounting.model_call("provider", "model", request="ask " * 100, response=DATA.hex())
        assert [one.version for one in s.artifacts()] == [1, 1]
        assert [s.artifact_store.artifact_data(name) for name in ("opened", "given")] == [
            DATA,
            DATA,
        ]


def undo(hub: Hub, oid: str, tmp_path: Path) -> None:
    del oid
    (tmp_path / "other").mkdir()
    file = tmp_path / "other" / "file"
    with hub.workspace(tmp_path / "other", name="other") as workspace:
        for text in ("one", "two", "three"):
            file.write_text(text)
            workspace.commit(text)
        file.write_text("not committed")
        workspace.undo(2)
        assert file.read_text() == "two"
        workspace.redo(2)
        assert file.read_text() == "not committed"


@pytest.mark.parametrize("verb", [*VERBS, pull, import_, behind, record, undo])
def test_verb_interrupted_by_sweeps_is_retried_until_it_succeeds(
    host: OpenAs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Callable[..., None]
) -> None:
    """One before each of the first things that it writes and that name objects."""
    one, two = host("one"), host("two")
    oid = lost_commit(one, tmp_path)
    one.refs.create("held", from_hex(oid))
    swept: list[int] = []

    def meeting(write: Callable[..., Any]) -> Callable[..., Any]:
        def met(*args: Any, **given: Any) -> Any:
            if len(swept) < 4 and two.objects.sweep_lock.is_writing():
                with one.store.writing():
                    one.objects.put(Kind.BLOB, os.urandom(50_000))
                    one.objects.flush()
                swept.append(one.sweep(min_garbage=0.0).packs_removed)
            return write(*args, **given)

        return met

    for write in ("move", "append"):
        monkeypatch.setattr(two.catalog, write, meeting(getattr(two.catalog, write)))
    verb(two, oid, tmp_path)
    assert len(swept) == 4
    assert all(swept)
    assert not host("three").verify().problems
