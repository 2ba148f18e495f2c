"""Values that are no such thing: refused in words, before anything is written, and the session goes
on; deeds under one key that several want to repeat: one does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from tests.fixtures.workers import Start

from ortet.config.environment import open_hub
from ortet.errors import Conflict, Invalid, NotDone, OrtetError
from ortet.hub.hub import Hub, hub_of
from ortet.sessions.actions.actions import CallOptions, describe
from ortet.sessions.session import Session

Verb = Callable[[Session, Any], Any]

TEXTS: dict[str, Verb] = {
    "think": lambda s, odd: s.think(odd),
    "note": lambda s, odd: s.note(odd, 1),
    "ask": lambda s, odd: s.ask(odd),
    "answer": lambda s, odd: s.answer(odd, 1),
    "plan": lambda s, odd: s.plan([odd]),
    "learn": lambda s, odd: s.learn(odd),
    "about": lambda s, odd: s.learn("x", about=odd),
    "lesson": lambda s, odd: s.lesson(odd),
    "forget": lambda s, odd: s.forget(odd),
    "decide": lambda s, odd: s.decide(odd),
    "decide why": lambda s, odd: s.decide("x", why=odd),
    "instead_of": lambda s, odd: s.decide("x", instead_of=[odd]),
    "artifact kind": lambda s, odd: s.artifact("a", data="x", kind=odd),
    "artifact why": lambda s, odd: s.artifact("a", data="x", why=odd),
    "act why": lambda s, odd: s.act(int, why=odd),
    "approval why": lambda s, odd: s.actions.request_approval("x", why=odd),
    "collaborate": lambda s, odd: s.external.collaborate(odd),
    "comment by": lambda s, odd: hub_of(s).comment(s.id, "x", by=odd),
    "commit": lambda s, odd: s.commit(odd),
}


@pytest.mark.parametrize("odd", [7, [1], {"a": 1}, object()], ids=lambda odd: type(odd).__name__)
@pytest.mark.parametrize("verb", TEXTS)
def test_what_is_no_text_is_refused_and_the_session_goes_on(
    hub: Hub, store: Path, verb: str, odd: object
) -> None:
    with hub.session("a") as s:
        s.say("user", "before")
        with pytest.raises(Invalid):
            TEXTS[verb](s, odd)
        s.say("user", "behind")
        s.commit("behind")
    with open_hub(store) as other, other.session("a") as s:
        assert [m.content for m in s.messages()] == ["before", "behind"]
        assert s.briefing().markdown
        assert (s.facts(), s.conversation.decisions(), s.conversation.questions(), s.steps) == (
            [],
            [],
            [],
            [],
        )
    hub.verify()


VALUES: dict[str, Callable[[Hub, Session], Any]] = {
    "ttl nan": lambda _, s: s.note("k", 1, ttl=float("nan")),
    "ttl inf": lambda _, s: s.note("k", 1, ttl=float("inf")),
    "ttl text": lambda _, s: s.note("k", 1, ttl="soon"),  # type: ignore[arg-type]
    "plan text": lambda _, s: s.plan("abc"),
    "advance": lambda _, s: s.advance("1"),  # type: ignore[arg-type]
    "say_all": lambda _, s: s.say_all(["hi"]),  # type: ignore[list-item]
    "why": lambda _, s: s.act(int, why="\ud800"),
    "name": lambda _, s: s.act(int, name="\ud800"),
    "key": lambda _, s: s.act(int, key=5),  # type: ignore[arg-type]
    "by": lambda hub, s: hub.comment(s.id, "x", by="\ud800"),
    "hold": lambda hub, s: hub.governance.hold(s.id, "\ud800"),
    "status": lambda _, s: s.external.collaborate("c", status=["done"]),  # type: ignore[arg-type]
    "reset": lambda _, s: s.external.window(
        "w", remaining=1, reset=datetime.max.replace(tzinfo=UTC)
    ),
    "url": lambda _, s: s.external.browser(["http://\ud800"]),
    "urls": lambda _, s: s.external.browser(5),  # type: ignore[arg-type]
    "storage": lambda _, s: s.external.browser(storage="a\0b"),
    "only": lambda _, s: s.restore("HEAD", only=[["mind"]]),  # type: ignore[list-item]
    "rewind": lambda _, s: s.rewind(2**70),
    "carry": lambda hub, _: hub.transfer.from_carry(5),  # type: ignore[arg-type]
    "checkpoint": lambda hub, _: hub.transfer.from_checkpoint("\ud800"),
    "session": lambda hub, _: hub.session(5),  # type: ignore[arg-type]
    "agent": lambda hub, _: hub.session("x", agent=5),  # type: ignore[arg-type]
    "parent": lambda hub, _: hub.session("x", parent=5),  # type: ignore[arg-type]
    "get": lambda hub, _: hub.get(5),  # type: ignore[arg-type]
    "vault": lambda hub, _: hub.vault.put(5, "x"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", VALUES)
def test_every_odd_value_is_an_error_of_ours(hub: Hub, case: str) -> None:
    s = hub.session("a")
    s.say("user", "one")
    s.commit("one")
    with pytest.raises(OrtetError):
        VALUES[case](hub, s)
    s.say("user", "two")
    s.pause()
    assert [m.content for m in hub.session("a").messages()] == ["one", "two"]
    hub.verify()


def test_a_fork_of_forks_however_deep_is_opened_by_its_name(hub: Hub, store: Path) -> None:
    s = hub.session("a")
    s.say("user", "one")
    for _ in range(120):
        (s,) = s.fork(1, machine=False)
    s.say("user", "two")
    s.commit("deep")
    hub.close()
    with open_hub(store) as other, other.session(s.name) as deep:
        assert len(deep.name) > 200
        deep.say("user", "three")
        deep.restore("HEAD")
        assert [m.content for m in deep.messages()] == ["one", "two"]
        with pytest.raises(Invalid):
            other.session("b" * 201)


class TestOneDeed:
    def test_failed_effect_is_retried_by_only_one_of_several_forks(self, hub: Hub) -> None:
        s = hub.session("a")

        def pay() -> str:
            raise NotDone("no route")

        with pytest.raises(NotDone, match="no route"):
            s.act(pay, key="invoice-1", replay="once")
        first, second = s.fork(2, machine=False)
        done: list[str] = []

        def again() -> str:
            with pytest.raises(Conflict) as refused:  # both have seen that it failed
                second.internals.pipeline.effects._begin(call, why="", before=before, approve=None)
            assert refused.value.kind == "in_flight"
            done.append("first")
            return "paid"

        effects = second.internals.pipeline.effects
        options = CallOptions(name="pay", key="invoice-1", replay="once")
        call = effects.prepare(describe(again, (), {}, options), (), {})
        before = effects.find_previous(call)
        assert first.act(again, key="invoice-1", replay="once", name="pay") == "paid"
        assert second.act(again, key="invoice-1", replay="once", name="pay") == "paid"
        assert done == ["first"]

    def test_failed_effect_is_retried_once_by_racing_processes(
        self, hub: Hub, store: Path, tmp_path: Path, start: Start
    ) -> None:
        s = hub.session("a")
        with pytest.raises(ZeroDivisionError):
            s.act(
                lambda: 1 // 0,
                key="k",
                replay="once",
                name="mark",
                safe_errors=(ZeroDivisionError,),
            )
        names = [fork.name for fork in s.fork(3, machine=False)]
        hub.close()
        mark = tmp_path / "mark"
        workers = [start("deed", store, name, mark) for name in names]
        for worker in workers:
            worker.wait_for("ready")
        for worker in workers:
            worker.go()
        assert {worker.done for worker in workers} <= {"done", "in_flight"}
        assert mark.read_text() == "x"

    def test_threads_that_make_one_artifact_make_a_version_each(self, hub: Hub) -> None:
        s = hub.session("a")
        both = Barrier(4)

        def make(number: int) -> int:
            both.wait()
            return max(s.artifact("a", data=f"{number} {n}").version for n in range(5))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(make, range(4)))
        assert [one.version for one in s.artifacts()] == list(range(1, 21))
        assert len({one.oid for one in s.artifacts()}) == 20

    def test_effect_running_in_another_thread_is_refused_as_in_flight(self, hub: Hub) -> None:
        s = hub.session("a")

        def repeat() -> str:
            with ThreadPoolExecutor(1) as pool, pytest.raises(Conflict) as refused:
                pool.submit(s.act, int, key="k", replay="once", name="repeat").result()
            return refused.value.kind

        assert s.act(repeat, key="k", replay="once") == "in_flight"  # and not for anyone to settle

    def test_threads_sign_with_one_key(self, hub: Hub) -> None:
        s = hub.session("a")
        both = Barrier(8)
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda _: (both.wait(), s.carry())[1], range(8)))
        s.pause()
        for carried in set(made):
            hub.transfer.from_carry(carried).internals.lifecycle.release()

    def test_timeline_scoped_key_is_known_only_in_its_own_history(self, hub: Hub) -> None:
        s = hub.session("a")
        s.say("user", "pay")
        before = s.commit("before")
        paid: list[int] = []

        def deed() -> int:
            paid.append(1)
            return len(paid)

        def pay(session: Session) -> int:
            return int(session.act(deed, key="k", scope="timeline"))

        assert pay(s) == 1
        behind = s.commit("behind")
        (fork,) = s.fork(1, machine=False)
        fork.learn("something")
        s.merge(fork)
        assert pay(s) == 1
        s.restore(behind.oid)
        assert pay(s) == 1
        assert pay(fork) == 1
        s.restore(before.oid)
        assert pay(s) == 2  # it is not in this one's past
