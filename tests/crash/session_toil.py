"""An agent at work, to be killed anywhere: opens its session by name, goes on, never ends.

It tells what is durable: ("kept", timeline, seq, hash) of events, ("spend", n) before and the event
after, ("gen", n) before it writes a file, ("commit", oid, n) behind a commit that holds file n.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.crash.saying import Tell, leave_mark, marks, write_whole

import ortet
from ortet.config.environment import open_hub
from ortet.errors import Conflict, OrtetError, Refused
from ortet.hub.hub import Hub
from ortet.journal.conversation.tool_calls import calls_of, results_of
from ortet.journal.state.records import Message
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

NAME = "agent"
CLASSES = ("pure", "recorded", "idempotent", "once")


def dangling(messages: Sequence[Message]) -> list[str]:
    """Calls without a result right behind them, and results without a call: what APIs refuse."""
    open_: dict[str, int] = {}
    wrong: list[str] = []
    for message in messages:
        answered = results_of(message)
        wrong += [id_ for id_ in answered if id_ not in open_]
        for id_ in answered:
            open_.pop(id_, None)
        if not answered:
            wrong += open_
            open_ = {call.id: message.seq for call in calls_of(message)}
    return [*wrong, *open_]


def gen_of(view: SessionReader) -> int:
    """Which files this mind believes in."""
    return int(view.conversation.notes().get("gen", 0))


class Agent:
    """One process's worth of work on one session."""

    def __init__(self, hub: Hub, base: Path, tell: Tell, dice: random.Random, how: Any) -> None:
        self.hub = hub
        self.base = base
        self.tell = tell
        self.dice = dice
        self.how = how
        self.deeds = base / "deeds"
        self.next = dice.randrange(10**12)  # numbers that no other process uses
        self.open(self._choose())

    def _choose(self) -> str:
        forks = [x.name for x in self.hub.sessions() if x.name.startswith(f"{NAME}/")]
        return NAME if not forks or self.dice.random() < 0.7 else self.dice.choice(forks[-5:])

    def open(self, name: str) -> None:
        options = dict(self.how)
        if name == NAME:
            options.update(workspace=self.base / "work", engine="folder", budget={"tokens": 1e12})
        self.take(self.hub.session(name, **options))

    def take(self, session: Session) -> None:
        self.s = session
        self.timeline = session.internals.row.timeline
        self.told = session.internals.state.core.events
        self.check()
        for effect in session.effects():
            if effect.state == "unsettled":
                self.settle(effect.id)

    def number(self) -> int:
        self.next += 1
        return self.next

    def settle(self, effect: str) -> None:
        """Ask the world whether it was done."""
        done = any(line[0] == effect for line in marks(self.deeds))
        self.s.actions.settle(effect, "by its mark", failed=not done)

    def check(self) -> None:
        """What must hold for whoever goes on."""
        s = self.s
        assert not dangling(s.messages()), dangling(s.messages())
        assert not dangling(s.context(tokens=500).messages)
        if s.name == NAME:
            now, file = gen_of(s), self.base / "work/gen"
            there = int(file.read_text()) if file.exists() else 0
            self.tell("seen", there, now)

    def confirm(self, *, sync: bool = False) -> None:
        """Tell which events are durable; `sync`: make them so."""
        s, durability = self.s, self.s.internals.profile.durability
        if s.internals.row.timeline != self.timeline:
            self.timeline, self.told = s.internals.row.timeline, s.internals.event_log.base.seq
        if sync:
            s.events()
        for event in s.internals.event_log.events(self.told):
            self.tell("kept", event.timeline, event.seq, event.hash.hex(), s.id)
            self.told = event.seq
        if durability == "event" or sync:
            assert self.told == s.internals.state.core.events

    # what it does

    def talk(self) -> None:
        s, id_ = self.s, f"call-{self.number()}"
        s.say("user", f"please do {id_}" + " and take care" * self.dice.randrange(20))
        self.confirm()
        if self.dice.random() < 0.5:
            call = {"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}}
            s.say("assistant", None, tool_calls=[call])
            self.confirm()
            s.say("tool", "42", tool_call_id=id_)
        else:
            s.say("assistant", [{"type": "tool_use", "id": id_, "name": "f", "input": {}}])
            self.confirm()
            s.say("user", [{"type": "tool_result", "tool_use_id": id_, "content": "42"}])
        self.confirm()
        s.say("assistant", f"{id_} is done")

    def interrupted_talk(self) -> None:
        """A commit between a call and its result, and back to it: the pair is whole again."""
        s, id_ = self.s, f"call-{self.number()}"
        s.say("assistant", None, tool_calls=[{"id": id_, "function": {"name": "f"}}])
        s.commit("in the middle")
        self.confirm(sync=True)
        s.say("tool", "late", tool_call_id=id_)
        s.commit("behind the result")
        s.rewind(1)
        self.confirm()
        self.check()

    def think(self) -> None:
        s, dice, n = self.s, self.dice, self.number()
        s.note(f"n{n % 50}", n, ttl=dice.choice([None, 3600, 1e-6]))
        s.think("hm")
        s.plan([f"step {n}", "then", "last"])
        s.advance()
        s.decide(f"go {n}", why="it is shorter", instead_of=["wait"])
        s.learn(f"fact {n}", about="work", scope=dice.choice(["session", "agent"]))
        if dice.random() < 0.2:
            s.milestone(f"until {n}")
            assert s.recall(f"until {n}", 3)
        s.answer(s.ask("why?"), "because")

    def spend(self) -> None:
        amount = self.dice.randrange(1, 1000)
        self.confirm()
        self.tell("spend", amount)
        self.s.spend(tokens=amount, model=f"m{amount % 3}")

    def make(self) -> None:
        self.s.artifact(
            f"a{self.dice.randrange(5)}", data=self.dice.randbytes(2000), why="asked for"
        )

    def call_model(self) -> None:
        amount = self.dice.randrange(1, 1000)
        self.confirm()
        self.tell("spend", amount)
        usage = {"input_tokens": amount, "output_tokens": 0}
        self.s.accounting.model_call(
            "p", "m", usage=usage, request={"q": amount}, response={"a": 1}
        )

    def act(self) -> None:
        kind: Any = self.dice.choice(CLASSES)
        key = ""
        if kind in ("idempotent", "once"):  # the first of its class that is not done
            done = {e.key for e in self.s.effects() if e.state == "done"}
            key = next(k for n in range(10**6) if (k := f"{kind}-{n}") not in done)
        try:
            self.s.act(self.deed, kind, key, replay=kind, key=key or None, why="it is time")
        except Conflict as error:
            if error.kind == "unsettled":  # a killed process had begun the same call
                self.settle(error.details["id"])
                return
            if error.kind != "in_flight":
                raise
            (effect,) = (e.id for e in self.s.effects() if e.key == key)
            self.settle(effect)  # its process was killed, and nobody has opened that fork since

    def deed(self, kind: str, key: str) -> str:
        leave_mark(self.deeds, self.s.internals.pipeline.effects.current(), kind, key or "-")
        return "marked"

    def act_approved(self) -> None:
        s = self.s
        # what a killed sibling has begun may be done: without a key each fork has its own
        done = sum(e.name == "approved" and e.state != "failed" for e in s.effects())
        denied = sum(a.state == "denied" for a in s.actions.approvals())
        what = f"approved-{done}-{denied}"
        for _ in range(3):
            try:
                s.act(
                    self.deed,
                    "once",
                    what,
                    name="approved",
                    replay="once",
                    key=ortet.by_arguments,
                    approve="may I?",
                )
            except Refused as error:
                if error.kind != "approval_pending":
                    return
                self.confirm(sync=True)
                self.hub.approve(s.id, error.details["id"], by="ann", ok=self.dice.random() < 0.8)
            else:
                return

    def hear(self) -> None:
        n = self.number()
        self.tell("comment?", n)
        self.hub.comment(self.s.id, f"c{n}", by="bob")
        self.tell("comment", n)

    def compact(self) -> None:
        self.s.compact(keep_last=self.dice.randrange(4, 12))

    def commit(self) -> None:
        s, n = self.s, self.number()
        if s.name == NAME:
            self.tell("gen", n)
            write_whole(self.base / "work/gen", str(n))
        s.note("gen", n)
        self.confirm()
        info = s.commit(f"gen {n}")
        self.confirm(sync=True)
        self.tell("commit", info.oid, n, s.name == NAME)

    def fork(self) -> None:
        for kid in self.s.fork(self.dice.randrange(1, 3), machine=False):
            kid.say("user", "you are a fork")
            kid.spend(tokens=0)
            kid.commit("of the fork")
            kid.pause()

    def back(self) -> None:
        s = self.s
        if s.head is None:
            return
        commits = [
            c for c in self.hub.log(s.internals.row.branch)[:8] if c.message.startswith("gen ")
        ]
        if commits:
            target = self.dice.choice(commits)
            s.restore(target.oid)
            assert gen_of(s) == int(target.message.split()[1])
            if s.name == NAME:
                assert (self.base / "work/gen").read_text() == target.message.split()[1]
            self.check()

    def hand_over(self) -> None:
        """Let a client carry it, and go on from that."""
        self.confirm(sync=True)
        text, s = self.s.carry(), self.s
        s.pause()
        self.take(self.hub.transfer.from_carry(text))

    def turn(self) -> None:
        name = self.s.name
        self.confirm(sync=True)
        self.s.pause()
        self.hub.turn(name, "hello", reply=lambda _: "hello")
        self.open(name)

    def copy(self) -> None:
        """A checkpoint begins another session, which is archived and comes back."""
        self.confirm(sync=True)
        name = f"copy-{self.number()}"
        copy = self.hub.transfer.from_checkpoint(self.s.checkpoint().to_json(), name=name)
        copy.say("user", "on my own now")
        copy.pause()
        self.hub.archive(copy.id, "enough")
        self.hub.unarchive(copy.id)
        self.hub.remove(copy.id)

    def sweep(self) -> None:
        self.hub.sweep(min_garbage=0.3)

    def step(self) -> None:
        verbs = {
            self.talk: 6,
            self.think: 4,
            self.act: 8,
            self.act_approved: 3,
            self.spend: 3,
            self.call_model: 1,
            self.make: 2,
            self.hear: 3,
            self.compact: 1,
            self.commit: 5,
            self.back: 1,
            self.interrupted_talk: 1,
            self.fork: 1,
            self.hand_over: 1,
            self.turn: 1,
            self.copy: 0.5,
            self.sweep: 0.3,
        }
        (verb,) = self.dice.choices(list(verbs), list(verbs.values()))
        verb()
        self.confirm(sync=self.dice.random() < 0.3)


def toil(base: Path, tell: Tell, *, seed: int, how: dict[str, Any]) -> None:
    with ortet.open(base / "store") as hub:
        agent = Agent(hub, base, tell, random.Random(seed), how)
        while True:
            agent.step()


class Leaping:
    """A clock that can be set forward: its process then finds every lease ended."""

    def __init__(self) -> None:
        self.ahead = 0

    def now_ns(self) -> int:
        return time.time_ns() + self.ahead


def race(base: Path, tell: Tell, *, who: str, seed: int, seconds: float) -> None:
    """Write to a session that another process wants too; take it over in the middle, at times.
    For so long, and until each of both has won and lost."""
    dice, clock = random.Random(seed), Leaping()
    end, met = time.monotonic() + seconds, set[str]()
    with open_hub(base / "store", clock=clock) as hub:
        while time.monotonic() < end or len([*base.glob("*.raced")]) < 2:
            try:
                s = hub.session("race")
                for turn in range(dice.randrange(1, 8)):
                    event = s.say("user", f"{who} {turn}")
                    tell("kept", event.seq, event.hash.hex())
                    met.add("kept")
                    if dice.random() < 0.1:
                        s.commit(who)
                        tell("won")
                s.pause()
            except (Refused, Conflict) as error:
                tell("lost", error.kind)
                met.add("lost")
                if dice.random() < 0.3:
                    clock.ahead += 31 * 10**9
            except OrtetError as error:
                tell("wrong", repr(error))
                for name in (who, "nobody"):  # the other need not wait
                    (base / f"{name}.raced").touch()
                raise
            if len(met) == 2:
                (base / f"{who}.raced").touch()
