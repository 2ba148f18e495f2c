"""An agent is killed with -9 a thousand times, and two processes race for one session.

Proven: no acknowledged event is lost, no deed is done twice, every tool call has its result, the
chain verifies, money is counted once, and the files are those the mind believes in.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.crash.running import Ended, Running, run, start
from tests.crash.saying import marks
from tests.crash.session_toil import NAME

import ortet
from ortet.hub.hub import Hub
from ortet.journal.events import Event

SOAK = int(os.environ.get("ORTET_SOAK", "1"))
KILLS = 25 * SOAK
"""Of each campaign; there are four."""

POINTS = [
    "action.begun",
    "action.done",
    "archive.committed",
    "archive.stored",
    "archive.turned",
    "archive.back",
    "artifact.stored",
    "budget.before-spend",
    "commit.after-flush",
    "commit.after-move",
    "commit.before-flush",
    "fork.after-move",
    "inbox.after-drain",
    "inbox.before-drain",
    "journal.after-append",
    "journal.before-append",
    "journal.before-seal",
    "publish.after-append",
    "publish.before-append",
    "restore.after-thaw",
    "restore.before-thaw",
    "seal.after-put",
    "sweep.after-copy",
    "sweep.after-delete",
    "sweep.after-mark",
    "tail.after-sync",
    "tail.after-write",
    "tail.before-sync",
    "thaw.journaled",
    "thaw.placed",
    "thaw.done",
]


class Ledger:
    """What killed processes acknowledged, and what they may or may not have done besides."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int], tuple[str, str]] = {}
        self.spent: list[int] = []
        self.comments: set[int] = set()
        self.maybe: set[int] = set()
        self.commits: dict[str, tuple[int, bool]] = {}
        self.gens: set[int] = {0}
        self.believed: set[int] = set()

    def take(self, ended: Ended) -> list[tuple[str, int, str]]:
        """Returns the events that are new."""
        new = []
        for timeline, seq, hash_, session in ended.of("kept"):
            assert self.kept.setdefault((timeline, seq), (hash_, session)) == (hash_, session)
            new.append((timeline, seq, hash_))
        self.spent += [amount for (amount,) in ended.of("spend")]
        self.maybe |= {number for (number,) in ended.of("comment?")}
        self.comments |= {number for (number,) in ended.of("comment")}
        self.commits.update({oid: (n, files) for oid, n, files in ended.of("commit")})
        self.gens |= {number for (number,) in ended.of("gen")}
        for there, believed in ended.of("seen"):
            # a file that was written just before a kill is one the mind has not heard of yet
            assert there == believed or there in self.gens - self.believed
            self.believed.add(believed)
        return new


def has(hub: Hub, timeline: str, seq: int) -> str:
    (row,) = hub.catalog.events(timeline, seq - 1, 1)
    assert row.seq == seq
    return hub.objects.hasher.oid(row.head).hex()


def every_event(hub: Hub, family: str) -> Iterator[Event]:
    """Of all timelines of a family, restored away or not, each once."""
    chain = hub.internals.services.chain
    todo = [span.timeline for span in hub.get(family).internals.event_log.timeline_spans()[:1]]
    while todo:
        timeline = todo.pop()
        todo += [child.id for child in hub.catalog.children(timeline)]
        after = 0
        while rows := hub.catalog.events(timeline, after):
            yield from (chain.read(row, timeline) for row in rows)
            after = rows[-1].seq


def check_told(hub: Hub) -> None:
    """What the first session has committed for others, they know, each fact and episode once."""
    with hub.session(NAME) as s:
        committed = s.internals.event_log.base.seq
        meant = [fact for fact in s.internals.state.facts if fact.scope and fact.seq <= committed]
    for known in hub.internals.services.scopes.all():
        told = [
            e.data["id"]
            for e in known.events(hub.internals.services)
            if e.kind in ("fact", "episode")
        ]
        assert len(told) == len(set(told))
        assert {fact.id for fact in meant} <= set(told)


def check_deeds(hub: Hub, base: Path, family: str) -> None:
    effects = {effect.id: effect for effect in hub.get(family).effects()}
    done = Counter(line[0] for line in marks(base / "deeds"))
    keys: dict[str, set[str]] = {}
    for id_, kind, key in marks(base / "deeds"):
        assert id_ in effects  # the intent was durable before the deed
        keys.setdefault(key, set()).add(id_)
        assert kind not in ("recorded", "once") or done[id_] == 1, (kind, id_)
    assert all(len(ids) == 1 for key, ids in keys.items() if key != "-")
    for effect in effects.values():
        if effect.replay in ("recorded", "once"):
            assert effect.state not in ("done", "failed") or done[effect.id] == (
                effect.state == "done"
            ), effect
        assert effect.state != "done" or done[effect.id], effect


def check_money(hub: Hub, family: str, events: list[Event], told: Ledger) -> None:
    spends = [e.data["amounts"].get("tokens", 0) for e in events if e.kind == "spend"]
    assert sum(spends) == hub.get(family).accounting.spent().get("tokens", 0)
    assert sum(line.amounts.get("tokens", 0) for line in hub.bill()) == sum(spends)
    # each was announced, and told of by an event that was acknowledged, but for the killed ones
    assert not Counter(map(int, filter(None, spends))) - Counter(told.spent)


def check_all(hub: Hub, base: Path, told: Ledger) -> None:
    hub.verify()
    check_told(hub)  # first: who opens a session takes what waits for it into the journal
    (family,) = {x.family for x in hub.sessions() if x.name == NAME}
    events = list(every_event(hub, family))
    there = {(e.timeline, e.seq): e.hash.hex() for e in events}
    alive = {x.id for x in hub.sessions()}
    for place, (hash_, session) in told.kept.items():
        assert session not in alive or there.get(place) == hash_, place
    for row in hub.sessions():
        assert hub.audit(row.id).events == hub.get(row.id).internals.state.core.events
    check_deeds(hub, base, family)
    check_money(hub, family, events, told)
    heard = Counter(e.data["text"] for e in events if e.kind == "comment")
    for row in hub.sessions():
        waiting = [e for e in hub.get(row.id).events() if e.waiting]
        heard.update(e.data["text"] for e in waiting if e.kind == "comment")
    assert {f"c{n}" for n in told.comments} <= set(heard) <= {f"c{n}" for n in told.maybe}
    assert set(heard.values()) <= {1}


def check_commit(hub: Hub, base: Path, oid: str, gen: int, files: bool) -> None:
    """The files of a commit are those its mind believes in."""
    if files:
        place = base / "restored"
        hub.restore(oid, to=place)
        assert (place / "gen").read_text() == str(gen)
        for path in sorted(place.rglob("*"), reverse=True):
            path.unlink()
        place.rmdir()


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    ("how", "seed"),
    [
        ({"durability": "event"}, 1),
        ({"durability": "event", "commit": "action"}, 2),
        ({"durability": "group", "commit": "milestone"}, 3),
        ({"durability": "commit"}, 4),
    ],
    ids=["event", "by-action", "group", "on-commit"],
)
def test_repeatedly_killed_agent_loses_no_acknowledged_event(
    how: dict[str, Any], seed: int, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    dice = random.Random(seed)
    told, killed, at_points = Ledger(), 0, 0
    with ortet.open(tmp_path / "store") as hub:
        for number in range(KILLS):
            fault, after, delay = "", dice.randrange(2, 60), dice.random() * 0.01
            if dice.random() < 0.5:
                fault, after = f"{dice.choice(POINTS)}:kill:{dice.randrange(1, 6)}", 120
            ended = run(
                "toil",
                tmp_path,
                fault=fault,
                after=after,
                delay=delay,
                seed=dice.randrange(10**9),
                how=how,
            )
            assert ended.killed
            killed += 1
            at_points += bool(fault) and len(ended.said) < after
            for timeline, seq, hash_ in told.take(ended):
                assert has(hub, timeline, seq) == hash_
            if number % 100 == 99:
                check_all(hub, tmp_path, told)
        check_all(hub, tmp_path, told)
        for oid, (gen, files) in dice.sample(sorted(told.commits.items()), 10):
            check_commit(hub, tmp_path, oid, gen, files)
    assert (killed, at_points > 0) == (KILLS, True)


@pytest.mark.soak
def test_two_processes_racing_for_one_session_keep_one_history(tmp_path: Path) -> None:
    with ortet.open(tmp_path / "store") as hub:
        hub.session("race").pause()
    both = [
        start("race", tmp_path, who=f"p{number}", seed=number, seconds=3.0 * SOAK)
        for number in range(2)
    ]
    with ThreadPoolExecutor(2) as pool:  # neither waits for the other to be listened to
        ended = list(pool.map(Running.end, both))
    kept = [(seq, hash_) for one in ended for seq, hash_ in one.of("kept")]
    assert all(one.of("kept") and one.of("lost") and not one.of("wrong") for one in ended)
    lost = {kind for one in ended for (kind,) in one.of("lost")}
    assert lost <= {"lease_held", "lease_lost", "head_moved", "row_moved"}, lost
    with ortet.open(tmp_path / "store") as hub:
        hub.verify()
        (row,) = hub.sessions()
        hub.audit(row.id)
        history = [(e.seq, e.hash.hex()) for e in hub.get(row.id).events()]
        assert [seq for seq, _ in history] == list(range(1, len(history) + 1))
        assert len(set(kept)) == len(kept)
        assert set(kept) <= set(history)
        assert (
            hub.catalog.children(hub.get(row.id).internals.event_log.timeline) == []
        )  # no forked history
