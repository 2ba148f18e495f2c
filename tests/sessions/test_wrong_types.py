"""Every public verb with values of a wrong type: Invalid says what to give, nothing is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ortet
from ortet.config.environment import open_hub
from ortet.errors import Invalid
from ortet.hub.hub import Hub
from ortet.sessions.session import Session
from ortet.workspaces.workspace import Workspace

Wrong = tuple[Any, ...]

THING = object()
TEXT: Wrong = (5, b"x", THING, [])
PATH: Wrong = (5, True, b"x", THING, [], "a\0b", "")
COUNT: Wrong = (-1, 1.5, True, "5", b"x", THING, [])
TIMES: Wrong = (0, *COUNT)
NUMBER: Wrong = (-1, True, "5", THING, [], float("nan"))
FLAG: Wrong = (5, "yes", b"x", THING, [])
DICT: Wrong = (5, "x", b"x", THING, [5])
CALL: Wrong = (5, "x", b"x", THING, [])
SEVERAL: Wrong = (5, "x", b"x", THING)
WHICH: Wrong = (5, None, b"x", THING, [])
COMMAND: Wrong = (5, None, b"x", THING, [], [5])


class Here(NamedTuple):
    hub: Hub
    s: Session
    ws: Workspace
    tmp: Path


Verb = Callable[[Here, Any], Any]

VERBS: dict[str, tuple[Verb, Wrong]] = {
    # a session says
    "say role": (lambda h, x: h.s.say(x, "hi"), (*TEXT, None)),
    "say_all": (lambda h, x: h.s.say_all(x), (*SEVERAL, None, [5])),
    "think": (lambda h, x: h.s.think(x), (*TEXT, None)),
    "note key": (lambda h, x: h.s.note(x, 1), (*TEXT, None)),
    "note ttl": (lambda h, x: h.s.note("k", 1, ttl=x), NUMBER),
    "compact keep_last": (lambda h, x: h.s.compact(x), COUNT),
    "compact summarise": (lambda h, x: h.s.compact(0, x), CALL),
    "ask": (lambda h, x: h.s.ask(x), (*TEXT, None)),
    "answer": (lambda h, x: h.s.answer(x, "a"), (*TEXT, None)),
    "plan": (lambda h, x: h.s.plan(x), (*SEVERAL, None, [5])),
    "advance": (lambda h, x: h.s.advance(x), COUNT),
    "learn": (lambda h, x: h.s.learn(x), (*TEXT, None)),
    "learn about": (lambda h, x: h.s.learn("t", about=x), (*TEXT, None)),
    "lesson": (lambda h, x: h.s.lesson(x), (*TEXT, None)),
    "forget": (lambda h, x: h.s.forget(x), (*TEXT, None)),
    "decide": (lambda h, x: h.s.decide(x), (*TEXT, None)),
    "decide instead_of": (lambda h, x: h.s.decide("t", instead_of=x), (*SEVERAL, None, [5])),
    "record kind": (lambda h, x: h.s.record(x, {}), (*TEXT, None)),
    "record data": (lambda h, x: h.s.record("my.kind", x), (*DICT, None)),
    "record version": (lambda h, x: h.s.record("my.kind", {}, version=x), TIMES),
    # it makes and spends
    "spend": (lambda h, x: h.s.spend(usd=x), (*NUMBER, None)),
    "spend model": (lambda h, x: h.s.spend(usd=1, model=x), (*TEXT, None)),
    "budget": (lambda h, x: h.s.budget(usd=x), NUMBER),
    "budget soft": (lambda h, x: h.s.budget(usd=1, soft=x), DICT),
    "model_call provider": (lambda h, x: h.s.accounting.model_call(x, "m"), (*TEXT, None)),
    "model_call model": (lambda h, x: h.s.accounting.model_call("p", x), (*TEXT, None)),
    "model_call params": (lambda h, x: h.s.accounting.model_call("p", "m", params=x), DICT),
    "model_call usage": (lambda h, x: h.s.accounting.model_call("p", "m", usage=x), DICT),
    "model_call request": (lambda h, x: h.s.accounting.model_call("p", "m", request=x), (THING,)),
    "artifact": (lambda h, x: h.s.artifact(x, data="x"), (*PATH, None)),
    "artifact data": (lambda h, x: h.s.artifact("a", data=x), (THING, {5: 5})),
    "artifact kind": (lambda h, x: h.s.artifact("a", data="x", kind=x), (*TEXT, None)),
    "artifact media": (lambda h, x: h.s.artifact("a", data="x", media=x), (*TEXT, None)),
    "artifact link": (lambda h, x: h.s.artifact("a", link=x), (*TEXT, None)),
    "artifact why": (lambda h, x: h.s.artifact("a", data="x", why=x), (*TEXT, None)),
    # it acts
    "act": (lambda h, x: h.s.act(x), CALL),
    "act why": (lambda h, x: h.s.act(len, "a", why=x), (*TEXT, None)),
    "act key": (lambda h, x: h.s.act(len, "a", key=x), TEXT),
    "act name": (lambda h, x: h.s.act(len, "a", name=x), TEXT),
    "act replay": (lambda h, x: h.s.act(len, "a", replay=x), (*TEXT, "never")),
    "act scope": (lambda h, x: h.s.act(len, "a", scope=x), (*TEXT, "all")),
    "act approve": (lambda h, x: h.s.act(len, "a", approve=x), TEXT),
    "run": (lambda h, x: h.s.run(x), COMMAND),
    "run env": (lambda h, x: h.s.run("true", env=x), (*DICT, {"A": 5}, {5: "A"})),
    "run cwd": (lambda h, x: h.s.run("true", cwd=x), TEXT),
    "run timeout": (lambda h, x: h.s.run("true", timeout=x), NUMBER),
    "run stdin": (lambda h, x: h.s.run("true", stdin=x), (5, THING, [])),
    "run output": (lambda h, x: h.s.run("true", output=x), CALL),
    "request_approval": (lambda h, x: h.s.actions.request_approval(x), (*TEXT, None)),
    "settle": (lambda h, x: h.s.actions.settle(x, 1), (*TEXT, None)),
    "settle failed": (lambda h, x: h.s.actions.settle("e", failed=x), (*FLAG, None)),
    # the world around it
    "collaborate": (lambda h, x: h.s.external.collaborate(x), (*TEXT, None)),
    "collaborate link": (lambda h, x: h.s.external.collaborate("c", link=x), TEXT),
    "collaborate effect": (lambda h, x: h.s.external.collaborate("c", effect=x), TEXT),
    "window": (lambda h, x: h.s.external.window(x, remaining=1, reset=5.0), (*TEXT, None)),
    "window remaining": (
        lambda h, x: h.s.external.window("s", remaining=x, reset=5.0),
        (*NUMBER, None),
    ),
    "window reset": (lambda h, x: h.s.external.window("s", remaining=1, reset=x), (*NUMBER, None)),
    "token": (lambda h, x: h.s.external.token(x), (*TEXT, None)),
    "token name": (lambda h, x: h.s.external.token("s", x), TEXT),
    "browser urls": (lambda h, x: h.s.external.browser(x), (5, b"x", THING, [5])),
    "browser storage": (lambda h, x: h.s.external.browser(storage=x), (5, b"x", THING, [])),
    "browser current": (lambda h, x: h.s.external.browser(current=x), (*FLAG, None)),
    # it moves
    "commit": (lambda h, x: h.s.commit(x), (*TEXT, None)),
    "restore": (lambda h, x: h.s.restore(x), WHICH),
    "restore only": (lambda h, x: h.s.restore("HEAD", only=x), (5, b"x", THING, "x", [5], [])),
    "rewind": (lambda h, x: h.s.rewind(x), (*TIMES, None)),
    "fork": (lambda h, x: h.s.fork(x), (*TIMES, None)),
    "fork machine": (lambda h, x: h.s.fork(machine=x), (*FLAG, None)),
    "merge": (lambda h, x: h.s.merge(x), WHICH),
    "merge message": (lambda h, x: h.s.merge("HEAD", message=x), (*TEXT, None)),
    "adopt": (lambda h, x: h.s.adopt(x), WHICH),
    "whatif": (lambda h, x: h.s.whatif(x, message="m"), (*TIMES, None)),
    "pause": (lambda h, x: h.s.pause(x), (*TEXT, None)),
    "finish": (lambda h, x: h.s.finish(x), (*TEXT, None)),
    "archive": (lambda h, x: h.s.archive(x), (*TEXT, None)),
    # it is read
    "events after": (lambda h, x: h.s.events(x), (*COUNT, None)),
    "events upto": (lambda h, x: h.s.events(0, x), COUNT),
    "messages": (lambda h, x: h.s.messages(x), COUNT),
    "context query": (lambda h, x: h.s.context(x), (*TEXT, None)),
    "context tokens": (lambda h, x: h.s.context(tokens=x), (*COUNT, None)),
    "context count": (lambda h, x: h.s.context(count=x), (*CALL, None)),
    "briefing tokens": (lambda h, x: h.s.briefing(x), (*COUNT, None)),
    "briefing count": (lambda h, x: h.s.briefing(count=x), (*CALL, None)),
    "handover": (lambda h, x: h.s.handover(x), (*PATH, None)),
    "dropped": (lambda h, x: h.s.conversation.dropped(x), (*COUNT, None)),
    "records": (lambda h, x: h.s.records(x), TEXT),
    "artifact_data": (lambda h, x: h.s.artifact_store.artifact_data(x), (*TEXT, None)),
    "artifact_data version": (lambda h, x: h.s.artifact_store.artifact_data("a", x), COUNT),
    "lineage": (lambda h, x: h.s.artifact_store.lineage(x), (*TEXT, None)),
    "lineage version": (lambda h, x: h.s.artifact_store.lineage("a", x), COUNT),
    "diff": (lambda h, x: h.ws.diff(x), WHICH),
    # a reader of it
    "view events": (lambda h, x: h.hub.get("s").events(x), (*COUNT, None)),
    "view handover": (lambda h, x: h.hub.get("s").handover(x), (*PATH, None)),
    "view token": (lambda h, x: h.hub.get("s").external.token(x), (*TEXT, None)),
    # a hub opens
    "session": (lambda h, x: h.hub.session(x), (*TEXT, None)),
    "session agent": (lambda h, x: h.hub.session("new", agent=x), (*TEXT, None)),
    "session goal": (lambda h, x: h.hub.session("new", goal=x), (*TEXT, None)),
    "session workspace": (lambda h, x: h.hub.session("new", workspace=x), PATH),
    "session files": (lambda h, x: h.hub.session("new", files=x), (*TEXT, "mine")),
    "session engine": (lambda h, x: h.hub.session("new", engine=x), (*TEXT, None)),
    "session budget": (lambda h, x: h.hub.session("new", budget=x), DICT),
    "session durability": (lambda h, x: h.hub.session("new", durability=x), (*TEXT, "none")),
    "session commit": (lambda h, x: h.hub.session("new", commit=x), (*TEXT, {"n": "x"})),
    "session profile": (lambda h, x: h.hub.session("new", profile=x), TEXT),
    "session parent": (lambda h, x: h.hub.session("new", parent=x), TEXT),
    "session replay": (lambda h, x: h.hub.session("new", replay=x), (*FLAG, None)),
    "session handover": (lambda h, x: h.hub.session("new", handover=x), TEXT),
    "session environment": (lambda h, x: h.hub.session("new", environment=x), TEXT),
    "workspace": (lambda h, x: h.hub.workspace(x), PATH),
    "workspace engine": (lambda h, x: h.hub.workspace(h.tmp, engine=x), (*TEXT, None)),
    "turn": (lambda h, x: h.hub.turn(x, "hi"), (*TEXT, None)),
    "turn role": (lambda h, x: h.hub.turn("t", "hi", role=x), (*TEXT, None)),
    "turn reply": (lambda h, x: h.hub.turn("t", "hi", reply=x), CALL),
    "from_carry": (lambda h, x: h.hub.transfer.from_carry(x), (*TEXT, None)),
    "from_checkpoint": (lambda h, x: h.hub.transfer.from_checkpoint(x), (5, None, THING, [], b"x")),
    # it answers for sessions
    "get": (lambda h, x: h.hub.get(x), WHICH),
    "is_open": (lambda h, x: h.hub.is_open(x), WHICH),
    "audit": (lambda h, x: h.hub.audit(x), WHICH),
    "erase": (lambda h, x: h.hub.erase(x), WHICH),
    "erase seqs": (lambda h, x: h.hub.erase("t", seqs=x), (*SEVERAL, ["1"], [-1], [True])),
    "erase user": (lambda h, x: h.hub.erase(user=x), TEXT),
    "bill since": (lambda h, x: h.hub.bill(since=x), (1.5, True, b"x", THING, [])),
    "bill by": (lambda h, x: h.hub.bill(by=x), (*TEXT, None)),
    "hold": (lambda h, x: h.hub.governance.hold(x), WHICH),
    "hold why": (lambda h, x: h.hub.governance.hold("t", x), (*TEXT, None)),
    "release": (lambda h, x: h.hub.governance.release(x), WHICH),
    "remove": (lambda h, x: h.hub.remove(x), WHICH),
    "archive of": (lambda h, x: h.hub.archive(x), WHICH),
    "unarchive": (lambda h, x: h.hub.unarchive(x), WHICH),
    "retention agent": (lambda h, x: h.hub.governance.retention(x), (*TEXT, None)),
    "retention keep": (lambda h, x: h.hub.governance.retention(keep_messages=x), NUMBER),
    "retention archive": (lambda h, x: h.hub.governance.retention(archive_after=x), NUMBER),
    "retain": (lambda h, x: h.hub.governance.retain(dry_run=x), (*FLAG, None)),
    "comment": (lambda h, x: h.hub.comment("s", x), (*TEXT, None)),
    "comment on": (lambda h, x: h.hub.comment(x, "hi"), WHICH),
    "comment by": (lambda h, x: h.hub.comment("s", "hi", by=x), (*TEXT, None)),
    "approve": (lambda h, x: h.hub.approve("s", x), (*TEXT, None)),
    "approve ok": (lambda h, x: h.hub.approve("s", "a", ok=x), (*FLAG, None)),
    "approve by": (lambda h, x: h.hub.approve("s", "a", by=x), (*TEXT, None)),
    "whatif of": (lambda h, x: h.hub.whatif(x, 1, message="m"), WHICH),
    "diff_runs a": (lambda h, x: h.hub.diff_runs(x, "s"), WHICH),
    "diff_runs b": (lambda h, x: h.hub.diff_runs("s", x), WHICH),
    # it looks after the store
    "log": (lambda h, x: h.hub.log(x), WHICH),
    "log limit": (lambda h, x: h.hub.log("s", limit=x), COUNT),
    "show": (lambda h, x: h.hub.show(x), WHICH),
    "restore to": (lambda h, x: h.hub.restore("w", x), (*PATH, None)),
    "export": (lambda h, x: h.hub.export(x, h.tmp / "b"), (*WHICH[:4], [5])),
    "export path": (lambda h, x: h.hub.export("s", x), (*PATH, None)),
    "export progress": (lambda h, x: h.hub.export("s", h.tmp / "b", progress=x), CALL),
    "export_jsonl": (lambda h, x: h.hub.governance.export_jsonl(x), (*PATH, None)),
    "export_jsonl of": (
        lambda h, x: h.hub.governance.export_jsonl(h.tmp / "j", sessions=x),
        (*SEVERAL, [5]),
    ),
    "import_": (lambda h, x: h.hub.import_(x), (*PATH, None)),
    "import_ progress": (lambda h, x: h.hub.import_(h.tmp / "b", progress=x), CALL),
    "verify": (lambda h, x: h.hub.verify(progress=x), CALL),
    "sweep dry_run": (lambda h, x: h.hub.sweep(dry_run=x), (*FLAG, None)),
    "sweep expire_ns": (lambda h, x: h.hub.sweep(expire_ns=x), COUNT),
    "sweep min_garbage": (lambda h, x: h.hub.sweep(min_garbage=x), NUMBER),
    "sweep progress": (lambda h, x: h.hub.sweep(progress=x), CALL),
    "drop": (lambda h, x: h.hub.drop(x), (*TEXT, None)),
    "drop discard": (lambda h, x: h.hub.drop("w", discard=x), (*FLAG, None)),
    # a workspace
    "ws run": (lambda h, x: h.ws.run(x), COMMAND),
    "ws run env": (lambda h, x: h.ws.run("true", env=x), (*DICT, {"A": 5})),
    "ws run timeout": (lambda h, x: h.ws.run("true", timeout=x), NUMBER),
    "ws commit": (lambda h, x: h.ws.commit(x), (*TEXT, None)),
    "ws log limit": (lambda h, x: h.ws.log(limit=x), COUNT),
    "ws restore": (lambda h, x: h.ws.restore(x), WHICH),
    "ws restore only": (lambda h, x: h.ws.restore("HEAD", only=x), (5, b"x", THING, [5])),
    "ws restore paths": (lambda h, x: h.ws.restore("HEAD", paths=x), (5, THING, [5], [None])),
    "ws rewind": (lambda h, x: h.ws.rewind(x), (*TIMES, None)),
    "ws fork": (lambda h, x: h.ws.fork(x), (*TIMES, None)),
    "ws merge": (lambda h, x: h.ws.merge(x), WHICH),
    "ws merge message": (lambda h, x: h.ws.merge("s", message=x), TEXT),
    "ws merge dry_run": (lambda h, x: h.ws.merge("s", dry_run=x), (*FLAG, None)),
    # the vault
    "vault put": (lambda h, x: h.hub.vault.put(x, "v"), (*TEXT, None)),
    "vault put value": (lambda h, x: h.hub.vault.put("n", x), (*TEXT, None)),
    "vault get": (lambda h, x: h.hub.vault.get(x), (*TEXT, None)),
    "vault has": (lambda h, x: h.hub.vault.has(x), (*TEXT, None)),
    "vault names": (lambda h, x: h.hub.vault.names(x), (*TEXT, None)),
    "vault forget": (lambda h, x: h.hub.vault.forget(x), (*TEXT, None)),
    # what marks a function
    "action": (lambda _, x: ortet.action(x), (5, None, b"x", THING, [])),
    "action replay": (lambda _, x: ortet.action(replay=x), (*TEXT, None)),
    "action key": (lambda _, x: ortet.action(key=x), (*TEXT, None)),
    "action scope": (lambda _, x: ortet.action(scope=x), (*TEXT, "all")),
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    tmp = tmp_path_factory.mktemp("types")
    (tmp / "w").mkdir()
    (tmp / "w" / "f").write_text("x")
    with open_hub(tmp / "store") as hub:
        hub.session("t").pause()
        s, ws = hub.session("s"), hub.workspace(tmp / "w")
        s.plan(["a", "b"])
        s.artifact("a", data="x")
        s.commit("c")
        ws.commit("w")
        yield Here(hub, s, ws, tmp)


def written(here: Here) -> list[Any]:
    """All that a verb could have left: events, letters, sessions, secrets, policies, moves."""
    hub = here.hub
    rows = [(kind, hub.catalog.rows(kind)) for kind in ("session", "vault", "retention", "hold")]
    return [list(here.s.events()), rows, hub.catalog.ops(), sorted(here.tmp.iterdir())]


@pytest.mark.parametrize("verb", VERBS)
def test_a_wrong_type_is_told_and_nothing_is_written(here: Here, verb: str) -> None:
    call, wrong = VERBS[verb]
    before = written(here)
    for value in wrong:
        with pytest.raises(Invalid) as caught:
            call(here, value)
        assert re.search(": |give ", str(caught.value))
    assert written(here) == before
    assert here.s.status == "active"
