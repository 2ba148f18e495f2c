"""Recall, measured: how much of the evidence every system finds, and how fast."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import memory_metrics as metrics
import memory_peers as peers
import memory_prune
import memory_talk as talk
import ortet
import session_text
from measure import Sample, milliseconds, ordinary_environment, settle_disk
from memory_plan import Plan
from memory_rows import BY_KIND, DENSE, METRICS, TEXT
from session_peers import Peer
from session_plan import Bare

QUALITY = tuple(f"{metric}-{kind}" for metric in METRICS for kind in BY_KIND)
LARGE = ("recall-text", "recall-dense", "fill", "first-recall", "resident")


def all_rows(plan: Plan) -> Iterator[Sample]:
    for wanted, measured in (
        (QUALITY, _quality),
        (LARGE, _large),
        (("prune-recall", "prune-time"), _pruned),
        (("recall-all", "fill-all"), _beside),
        (("learn",), _learn),
        (("fork-facts",), _fork),
    ):
        if plan.wants(*wanted):
            settle_disk()
            yield from measured(plan)


def _quality(plan: Plan) -> Iterator[Sample]:
    """Every system on the dialogues that nothing was chosen by."""
    asked = talk.dialogues("final", plan.counts.dialogues)
    every = (peers.OURS, peers.BY_WORDS, peers.BY_MEANING, peers.LOCAL)
    for name, kind in peers.systems(plan, *every).items():
        with peers.running(plan, {name: kind}, plan.place / f"quality-{kind}") as (peer,):
            scored = [one for dialogue in asked for one in _scored(peer, dialogue)]
        for group, quality in metrics.by_kind(scored).items():
            for metric in METRICS:
                value = 100 * float(getattr(quality, metric))
                yield Sample(f"{metric}-{group}", name, [value])


def _scored(peer: Peer, dialogue: talk.Dialogue) -> list[tuple[str, metrics.Quality]]:
    peer.ask("begin", name=dialogue.name)
    peer.ask("add", texts=[turn.text for turn in dialogue.turns])
    questions = dialogue.questions
    asked = [question.text for question in questions]
    found = peer.ask("query", texts=asked, k=metrics.DEPTH)["found"]
    return [
        (question.kind, metrics.of(ids, question.evidence))
        for question, ids in zip(questions, found, strict=True)
    ]


def _large(plan: Plan) -> Iterator[Sample]:
    """The largest talk: ours by text and with vectors, and what else can hold so much."""
    data = talk.haystack(plan.counts.memories)
    groups = (peers.OURS, peers.BY_WORDS, peers.BY_MEANING)
    without = 0.0
    for name, kind in peers.systems(plan, *groups).items():
        place = plan.place / f"large-{kind}"
        with peers.running(plan, {name: kind}, place) as (peer,):
            empty = float(peer.ask("resident")["megabytes"])
            without = without or empty
            rate, spent = _asked(peer, data, plan.counts.questions)
            row = "recall-dense" if kind in ("ortet-dense", "dense") else "recall-text"
            yield Sample(row, name, spent, f"{len(data.turns)} memories")
            if name in peers.OURS:
                full = float(peer.ask("resident")["megabytes"])
                yield Sample("fill", name, [rate])
                yield Sample("resident", name, [full - empty + without])
        if name == TEXT:
            yield from _first_recall(plan, place / kind / "store", data.questions[0].text)


def _asked(peer: Peer, data: talk.Dialogue, count: int) -> tuple[float, list[float]]:
    """Memories a second when they are taken in, and the time of each question."""
    peer.ask("begin", name=data.name)
    seconds = peer.ask("add", texts=[turn.text for turn in data.turns])["seconds"]
    texts = _questions(data, count)
    peer.ask("query", texts=texts[:3], k=10)
    return len(data.turns) / seconds, list(peer.ask("query", texts=texts, k=10)["ms"])


def _questions(data: talk.Dialogue, count: int) -> list[str]:
    """As many as asked for, the same again where there are not enough."""
    known = [question.text for question in data.questions]
    return [known[number % len(known)] for number in range(count)]


FIRST = """
import sys, time
import ortet
begin = time.perf_counter()
with ortet.open(sys.argv[1]) as hub:
    session = hub.session("haystack")
    opened = time.perf_counter()
    found = session.recall(sys.argv[2], 10)
    print((time.perf_counter() - opened) * 1000, (opened - begin) * 1000)
"""


def _first_recall(plan: Plan, store: Path, question: str) -> Iterator[Sample]:
    recalls, opens = [], []
    source = str(Path(__file__).resolve().parent.parent / "src")
    for _ in range(plan.counts.starts):
        done = subprocess.run(
            [str(plan.python), "-c", FIRST, str(store), question],
            capture_output=True,
            text=True,
            check=True,
            env={**ordinary_environment(), "PYTHONPATH": source},
        )
        recall, opened = map(float, done.stdout.split())
        recalls.append(recall)
        opens.append(opened)
    yield Sample("first-recall", TEXT, recalls)
    yield Sample("first-recall", "ortet, opening before it", opens, "the store and the session")


def _pruned(plan: Plan) -> Iterator[Sample]:
    data = talk.haystack(plan.counts.memories)
    yield from memory_prune.all_rows(plan.place / "prune", data)


def _beside(plan: Plan) -> Iterator[Sample]:
    """What every system can hold in reasonable time."""
    data = talk.haystack(plan.counts.fewer)
    groups = (peers.OURS, peers.BY_WORDS, peers.BY_MEANING, peers.LOCAL)
    for name, kind in peers.systems(plan, *groups).items():
        with peers.running(plan, {name: kind}, plan.place / f"beside-{kind}") as (peer,):
            rate, spent = _asked(peer, data, plan.counts.questions)
        yield Sample("recall-all", name, spent)
        yield Sample("fill-all", name, [rate], "durable" if name in (TEXT, DENSE) else "")


def _learn(plan: Plan) -> Iterator[Sample]:
    """A fact, a message and a bare insert of the same text, in turn."""
    home = plan.place / "learn"
    home.mkdir()
    bare = Bare(home / "bare.db")
    values: dict[str, list[float]] = {"ortet, learn": [], "ortet, say": [], "bare apsw insert": []}
    learn, say, insert = values.values()
    with ortet.open(home / "store") as hub:
        session = hub.session("bench")
        for text in islice(session_text.messages(), plan.counts.learns):
            learn.append(milliseconds(partial(session.learn, text)))
            say.append(milliseconds(partial(session.say, "user", text)))
            insert.append(milliseconds(partial(bare.insert, text.encode())))
    bare.close()
    for name, spent in values.items():
        yield Sample("learn", name, spent, "WAL, synchronous=FULL")


def _fork(plan: Plan) -> Iterator[Sample]:
    """Two sessions of one store, one with facts: a fork of each, in turn."""
    with ortet.open(plan.place / "fork") as hub:
        full, empty = (_committed(hub, name) for name in ("facts", "none"))
        texts: Sequence[str] = [turn.text for turn in talk.haystack(plan.counts.facts).turns]
        for text in texts:
            full.learn(text)
        full.commit("facts")
        values: dict[str, list[float]] = {"ortet, with facts": [], "ortet, no facts": []}
        for _ in range(plan.counts.forks):
            for session, spent in zip((full, empty), values.values(), strict=True):
                spent.append(milliseconds(partial(session.fork, 1, machine=False)))
    for name, spent in values.items():
        yield Sample("fork-facts", name, spent)


def _committed(hub: ortet.Hub, name: str) -> ortet.Session:
    session = hub.session(name, durability="group")
    session.say("user", name)
    session.commit("begun")
    return session
