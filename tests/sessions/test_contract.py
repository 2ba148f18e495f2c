"""The public Python API as DESIGN has it, nearly word for word, on real files and both engines."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.waiting import loop_turns

import ortet
from ortet.errors import Conflict, Invalid, Refused
from ortet.integrations.aio import act

pytestmark = pytest.mark.files({"login.py": "print('one')\n", "report.md": "# all well\n"})

HOW = [("folder", "inplace"), ("folder", "private"), ("overlay", "private")]


def search(word: str) -> list[str]:
    return [f"{word}.py"]


@pytest.mark.parametrize(("engine", "files"), HOW)
def test_public_api_example_of_the_design_works(
    tmp_path: Path, work: Path, engine: str, files: Any
) -> None:
    hub = ortet.open(tmp_path / "store")
    with hub.session(
        "fix-42",
        agent="default",
        goal="make the suite green",
        workspace=work,
        files=files,
        engine=engine,
        budget={"usd": 5.0, "tokens": 2_000_000},
    ) as s:
        s.say("user", "the login test fails")
        s.plan(["reproduce", "fix", "verify"])
        s.advance()
        r = s.run("python3 login.py; echo oops >&2; exit 3", why="see the failure first")
        assert (r.exit_code, r.stdout, r.stderr) == (3, "one\n", "oops\n")
        assert s.run(["echo", "a b"]).stdout == "a b\n"
        hits = s.act(search, "parse", why="who calls parse()?")
        assert hits == ["parse.py"]
        s.think("the lexer drops the last token")
        s.note("branch", "fix/lexer", ttl=3600)
        s.ask("may I touch the grammar?")
        s.learn("tests need PYTHONPATH=src", about="testing")
        s.lesson("mocking the clock hid the bug")
        s.decide("patch the lexer", why="smallest change", instead_of=["rewrite parser"])
        s.artifact("report.md", kind="report")
        s.spend(tokens=1200, usd=0.01)
        c = s.commit("reproduced")
        assert (len(c.oid), c.message, c.parents) == (64, "reproduced", [])
        assert c.state
        assert c.time
        kids = s.fork(4)
        assert [kid.name for kid in kids] == [f"fix-42/{n}" for n in range(1, 5)]
        kids[0].run("echo zero > zero")
        kids[0].learn("zero works")
        kids[1].run("echo one > one")
        kids[1].say("assistant", "one is better")
        s.say("user", "wrong way")
        s.run("echo lost > login.py")
        s.restore(c.oid, only=None)
        assert [m.content for m in s.messages()] == ["the login test fails"]
        assert (s.path / "login.py").read_text() == "print('one')\n"
        assert s.diff(c.oid) == []
        assert [fact.text for fact in s.merge(kids[0]).facts] == ["zero works"]
        assert (s.path / "zero").read_text() == "zero\n"
        assert s.head is not None
        assert s.head.parents == [c.oid, kids[0].head.oid]  # type: ignore[union-attr]
        s.adopt(kids[1])
        assert [m.content for m in s.messages()][-1] == "one is better"
        assert (s.path / "one").read_text() == "one\n"
        if files == "private":
            assert not (work / "one").exists()
            s.land()
        assert (work / "one").read_text() == "one\n"
        s.compact(keep_last=20)
        assert "make the suite green" in str(s.briefing(tokens=2000))
        assert s.context("…", tokens=8000).messages
        assert [m.role for m in s.messages()] == ["user", "assistant"]
        assert "tests need PYTHONPATH=src" in [f.text for f in s.facts()]
        assert {e.name for e in s.effects()} == {"run", "search"}
        assert s.events()
        assert (s.status, len(s.id)) == ("active", 32)
        s.pause()
    assert s.status == "paused"
    s = hub.session("fix-42")
    s.finish()
    s.archive()
    rows = hub.sessions()
    assert [x.name for x in rows] == ["fix-42", *(f"fix-42/{n}" for n in range(1, 5))]
    assert [x.status for x in rows] == ["archived"] + ["active"] * 4
    reader = hub.get(rows[0].id)
    assert [m.content for m in reader.messages()][-1] == "one is better"
    assert not hasattr(reader, "say")
    assert hub.log(c.oid)[0].oid == c.oid
    hub.export(c.oid, tmp_path / "bundle")
    hub.restore(c.oid, to=tmp_path / "new")
    assert (tmp_path / "new/login.py").read_text() == "print('one')\n"
    hub.close()
    with ortet.open(tmp_path / "store") as again:
        assert [x.status for x in again.sessions()] == ["archived"] + ["paused"] * 4
        again.verify()
        again.sweep()
        again.verify()
        with pytest.raises(Conflict):
            again.session("fix-42")
    with ortet.open(tmp_path / "other") as other:
        assert c.oid in other.import_(tmp_path / "bundle").values()


def test_leaving_pauses_also_after_an_error(tmp_path: Path) -> None:
    hub = ortet.open(tmp_path / "store")
    with pytest.raises(ZeroDivisionError), hub.session("s") as s:
        s.say("user", "hi")
        raise ZeroDivisionError
    assert hub.get(s.id).status == "paused"
    with pytest.raises(Invalid) as caught:
        s.say("user", "too late")
    assert caught.value.kind == "closed"
    s.pause()  # again: nothing
    open_ = hub.session("t")  # opened and leased, without `with`
    with ortet.open(tmp_path / "store") as second, pytest.raises(Refused):
        second.session("t")
    (kid,) = open_.fork()
    hub.close()
    with ortet.open(tmp_path / "store") as again:
        assert {x.name: x.status for x in again.sessions()} == dict.fromkeys(
            ("s", "t", kid.name), "paused"
        )
        assert [m.content for m in again.session("s").messages()] == ["hi"]


def test_actions_sync_and_async_run_once_and_replay_from_the_record(tmp_path: Path) -> None:
    done: list[Any] = []

    @ortet.action(replay="once", key=ortet.by_arguments)
    def pay(amount: int) -> int:
        done.append(amount)
        return amount

    @ortet.action
    async def fetch(url: str) -> str:
        await loop_turns()
        done.append(url)
        return f"page of {url}"

    with ortet.open(tmp_path / "store") as hub, hub.session("s") as s:
        assert s.act(pay, 5, key="invoice") == 5
        assert s.act(pay, 5, key="invoice") == 5

        with pytest.raises(Invalid) as caught:
            _ = s.act(fetch, "x")
        assert caught.value.kind == "async_action"
        assert asyncio.run(act(s, fetch, "x", why="read it")) == "page of x"
        assert asyncio.run(act(s, pay, 6)) == 6
        assert done == [5, "x", 6]
        assert [(e.name, e.state, e.why) for e in s.effects()][1] == ("fetch", "done", "read it")
    with ortet.open(tmp_path / "store") as hub, hub.session("s", replay=True) as s:
        assert s.act(pay, 5, key="invoice") == 5
        assert asyncio.run(act(s, fetch, "x")) == "page of x"
        assert done == [5, "x", 6]


def test_async_actions_fail_and_are_cancelled(tmp_path: Path) -> None:
    async def wrong() -> None:
        raise ValueError("no")

    async def forever() -> None:
        started.set()
        await asyncio.Event().wait()

    async def cancelled() -> None:
        task = asyncio.create_task(act(s, forever))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def both() -> Any:
        async def one() -> int:
            await loop_turns()
            return 1

        return await asyncio.gather(act(s, one, name="a"), act(s, one, name="b"))

    with ortet.open(tmp_path / "store") as hub, hub.session("s") as s:
        with pytest.raises(ValueError, match="no"):
            asyncio.run(act(s, wrong))
        started = asyncio.Event()
        asyncio.run(cancelled())
        assert asyncio.run(both()) == [1, 1]
        states = {e.name: e.state for e in s.effects()}
        assert states == {"wrong": "failed", "forever": "failed", "a": "done", "b": "done"}


def test_error_classes_and_action_are_exported_by_the_package() -> None:
    for name in ("OrtetError", "NotFound", "Conflict", "Invalid", "Refused", "Unavailable"):
        assert issubclass(getattr(ortet, name), ortet.OrtetError)
    for name in ("Corrupt", "Unsupported", "Diverged", "Unsettled", "RecordedFailure"):
        assert issubclass(getattr(ortet, name), ortet.OrtetError)
    assert callable(ortet.action)


def test_message_content_is_returned_unchanged_also_in_a_fork(tmp_path: Path) -> None:
    with ortet.open(tmp_path / "store") as hub, hub.session("s") as s:
        s.say("user", "a str")
        s.say("assistant", [{"type": "text", "text": "parts"}])
        assert [m.content for m in s.messages()] == ["a str", [{"type": "text", "text": "parts"}]]
        (kid,) = s.fork(1, machine=False)
        assert kid.messages() == s.messages()
