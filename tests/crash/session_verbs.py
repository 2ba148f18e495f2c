"""What a session's programs do, one verb each, to be killed at every fault point on the way.

Each looks at what is there before it does something, as a program has to that is started again:
doing it twice ends where doing it once does. ("kept", timeline, seq, hash) tells what is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.running import run
from tests.crash.saying import Tell, leave_mark, marks

import ortet
from ortet.errors import Refused, Unsettled
from ortet.hub.hub import Hub
from ortet.sessions.session import Session

NAME = "s"


def prepare(base: Path) -> None:
    """Build a session with commits, a fork, waiting comments, an unsettled effect, an open call."""
    work = base / "work"
    (work / "dir").mkdir(parents=True)
    (work / "a").write_text("one")
    with ortet.open(base / "store") as hub:
        options: dict[str, Any] = {"workspace": work, "engine": "folder", "budget": {"tokens": 1e6}}
        with hub.session(NAME, goal="survive", **options) as s:
            s.say("system", "be kind")
            s.say("user", "alice is here", user="alice")
            s.plan(["first", "second"])
            s.learn("the sky is blue")
            s.spend(tokens=10)
            s.artifact("report", data=b"report one")
            s.commit("one")
            (work / "a").write_text("two")
            (work / "dir/b").write_text("new")
            for number in range(6):
                s.say("user", f"number {number}")
            s.decide("go on", why="it works")
            s.commit("two")
            s.fork(1, machine=False)[0].pause()
            s.say("assistant", "not committed")
            id_ = s.id
        hub.comment(id_, "from beside", by="bob")
    assert run("leave", base, fault="action.begun:kill").killed
    assert run("leave_call", base, after=1).killed


def leave(base: Path, tell: Tell) -> None:
    """Begin a deed; its process is killed before it is done."""
    with ortet.open(base / "store") as hub:
        hub.session(NAME).act(lambda: None, name="left", replay="once", key="left")
        tell("not reached")


def leave_call(base: Path, tell: Tell) -> None:
    """A tool call whose result never comes."""
    with ortet.open(base / "store") as hub:
        s = hub.session(NAME)
        s.say("assistant", None, tool_calls=[{"id": "c1", "function": {"name": "f"}}])
        tell("said")
        while True:
            hub.sessions()


class Program:
    """A session, opened, and what a careful program does with it."""

    def __init__(self, hub: Hub, s: Session, base: Path, tell: Tell) -> None:
        self.hub = hub
        self.s = s
        self.base = base
        self._tell = tell
        self._told = s.internals.state.core.events
        self._line = s.internals.row.timeline

    def kept(self) -> None:
        if self.s.internals.row.timeline != self._line:
            self._line, self._told = (
                self.s.internals.row.timeline,
                self.s.internals.event_log.base.seq,
            )
        for event in self.s.internals.event_log.events(self._told):
            self._tell("kept", event.timeline, event.seq, event.hash.hex())
            self._told = event.seq

    def say(self, text: str) -> None:
        if text not in [m.content for m in self.s.messages()]:
            self.s.say("user", text)
        self.kept()

    def deed(self, name: str) -> str:
        leave_mark(self.base / "deeds", self.s.internals.pipeline.effects.current(), name)
        return "marked"

    def act(self, kind: Any, **options: Any) -> None:
        """Once, whatever it takes; what is not known is found out from the marks."""
        s, name = self.s, f"do-{kind}"
        done = {effect.name: effect for effect in s.effects()}
        found = done.get(name)
        if found is not None and found.state in ("begun", "unsettled"):
            marked = any(mark[0] == found.id for mark in marks(self.base / "deeds"))
            if kind in ("recorded", "once"):
                s.actions.settle(found.id, "by its mark", failed=not marked)
                found = next(e for e in s.effects() if e.id == found.id)
        if found is None or found.state != "done":
            s.act(self.deed, name, name=name, replay=kind, **options)
        self.kept()


Body = Callable[[Program], None]
VERBS: dict[str, Callable[..., None]] = {"leave": leave, "leave_call": leave_call}
TESTED: list[str] = []


def verb(body: Body) -> Body:
    """A verb done with the session open."""

    def job(base: Path, tell: Tell) -> None:
        with ortet.open(base / "store") as hub, hub.session(NAME) as s:
            body(Program(hub, s, base, tell))

    _known(body.__name__, job)
    return body


def care(body: Callable[[Hub, str], None]) -> Callable[[Hub, str], None]:
    """A verb done to the session while nobody has it open."""

    def job(base: Path, tell: Tell) -> None:
        with ortet.open(base / "store") as hub:
            ids = [x.id for x in hub.sessions() if x.name == NAME]
            for id_ in ids:
                if hub.get(id_).status == "active":  # its process was killed
                    hub.session(NAME).pause()
                body(hub, id_)
                tell("did")

    _known(body.__name__, job)
    return body


def _known(name: str, job: Callable[..., None]) -> None:
    VERBS[name] = job
    TESTED.append(name)


@verb
def act_pure(p: Program) -> None:
    p.act("pure")


@verb
def act_recorded(p: Program) -> None:
    p.act("recorded")


@verb
def act_idempotent(p: Program) -> None:
    p.act("idempotent", key="k1")


@verb
def act_once(p: Program) -> None:
    p.act("once", key="k2")


@verb
def settle(p: Program) -> None:
    try:
        p.s.act(lambda: None, name="left", replay="once", key="left")
    except Unsettled as error:
        p.s.actions.settle(error.details["id"], "it was done")
    p.kept()


@verb
def approve(p: Program) -> None:
    for _ in range(2):
        try:
            p.act("once", key="k3", approve="may I?")
        except Refused as error:
            assert error.kind == "approval_pending"
            p.kept()
            p.hub.approve(p.s.id, error.details["id"], by="ann")


@verb
def commit(p: Program) -> None:
    p.say("before the commit")
    (p.base / "work/c").write_text("three")
    p.s.commit("three")
    p.kept()


@verb
def publish(p: Program) -> None:
    """Facts for others: told once, whenever it was killed."""
    known = [fact.text for fact in p.s.facts()]
    for text, scope in (("for all", "agent"), ("about ann", "user:ann"), ("mine", "session")):
        if text not in known:
            p.s.learn(text, scope=scope)
    if "the sky is blue" in known:
        sky = next(fact for fact in p.s.facts() if fact.text == "the sky is blue")
        p.s.learn("the sky is grey", scope="agent", supersedes=sky)
    p.s.commit("told")
    p.kept()


@verb
def consolidate(p: Program) -> None:
    if not p.s.memory.episodes():
        p.s.say("user", "I live in Lisbon.", user="ann")
        p.s.milestone("moved")
    p.s.commit("moved")
    p.hub.memory.consolidate()
    p.kept()


@verb
def adopt(p: Program) -> None:
    """What a fork learned for others is told when it is adopted."""
    names = [x.name for x in p.hub.sessions()]
    if f"{NAME}/2" not in names:
        for one in p.s.fork(1, machine=False):
            one.pause()
    kid = p.hub.session(f"{NAME}/2")
    if "of the fork" not in [fact.text for fact in kid.facts()]:
        kid.learn("of the fork", scope="agent")
    kid.commit("learned")
    if "of the fork" not in [fact.text for fact in p.s.facts()]:
        p.s.adopt(kid)
    p.kept()


@verb
def compact(p: Program) -> None:
    if not p.s.conversation.compactions():
        p.s.compact(keep_last=3)
    p.kept()


@verb
def artifact(p: Program) -> None:
    if len([a for a in p.s.artifacts() if a.name == "report"]) < 2:
        p.s.artifact("report", data=b"report two")
    p.kept()


@verb
def spend(p: Program) -> None:
    if p.s.accounting.spent().get("tokens") == 10:
        p.s.spend(tokens=7, model="m")
    p.kept()


@verb
def comment(p: Program) -> None:
    if "from outside" not in [e.data["text"] for e in p.s.conversation.comments()]:
        p.hub.comment(p.s.id, "from outside", by="bob")


@verb
def fork_minds(p: Program) -> None:
    if f"{NAME}/2" not in [x.name for x in p.hub.sessions()]:
        kids = p.s.fork(2, machine=False)
        assert [kid.name for kid in kids] == [f"{NAME}/2", f"{NAME}/3"]
    p.kept()


@verb
def fork_files(p: Program) -> None:
    if f"{NAME}/2" not in [x.name for x in p.hub.sessions()]:
        p.s.fork(1)
    p.kept()


@verb
def restore(p: Program) -> None:
    head = p.s.head
    if head is not None and head.message != "one":
        one = next(c for c in p.hub.log(p.s.internals.row.branch) if c.message == "one")
        p.s.restore(one.oid)
    p.kept()


@verb
def rewind(p: Program) -> None:
    while (head := p.s.head) is not None and head.message != "two":
        p.s.rewind(1)
    p.kept()


@care
def turn(hub: Hub, id_: str) -> None:
    if "hello" not in [m.content for m in hub.get(id_).messages()]:
        hub.turn(NAME, "hello")
    if hub.get(id_).messages()[-1].role != "assistant":
        hub.turn(NAME, "hello back", role="assistant")


@care
def carry(hub: Hub, id_: str) -> None:
    s = hub.transfer.from_carry(hub.get(id_).carry())
    if "carried" not in [m.content for m in s.messages()]:
        s.say("user", "carried")
    s.pause()


@care
def archive(hub: Hub, id_: str) -> None:
    if hub.get(id_).status != "archived":
        hub.archive(id_, "enough")


@care
def archive_and_back(hub: Hub, id_: str) -> None:
    if hub.get(id_).status != "archived" and "back" not in hub.get(id_).conversation.notes():
        hub.archive(id_, "enough")
    if hub.get(id_).status == "archived":
        hub.unarchive(id_)
    with hub.session(NAME) as s:
        if "back" not in s.conversation.notes():
            s.note("back", True)


@care
def erase_session(hub: Hub, id_: str) -> None:
    hub.erase(id_)


@care
def erase_user(hub: Hub, id_: str) -> None:
    del id_
    hub.erase(user="alice")
    hub.erase(user="bob")


@care
def retain(hub: Hub, id_: str) -> None:
    del id_
    hub.governance.retention(keep_messages=0, archive_after=0)
    hub.governance.retain()


@care
def remove(hub: Hub, id_: str) -> None:
    hub.remove(id_)
