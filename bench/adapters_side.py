"""The adapters beside what they stand in for: each in a process of its own, taking turns, so that
whatever else the machine does hits all alike."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path

import session_text
from adapters_plan import Plan
from adapters_rows import (
    AFLOOR,
    AOURS,
    ASESSION,
    ASQLITE,
    ASTORE,
    FLOOR,
    HALF,
    LENGTHS,
    MSTORE,
    OURS,
    SESSION,
    SQLITE,
    STORE,
    fork,
    turn,
)
from measure import Sample, settle_disk
from session_peers import Peer, running

CHILD = Path(__file__).with_name("adapters_child.py")
PACKAGES = ("langgraph", "langgraph-checkpoint", "langgraph-checkpoint-sqlite", "openai-agents")
SAVERS = {
    OURS: "ortet",
    AOURS: "ortet-async",
    FLOOR: "memory",
    AFLOOR: "memory-async",
}
SQUARE = {SQLITE: "sqlite", ASQLITE: "sqlite-async"}
"""Those that write all messages anew at every step."""
SESSIONS = {SESSION: "ortet-session"}
STORES = {STORE: "ortet-store", MSTORE: "memory-store"}
KB = 1000


def all_rows(plan: Plan) -> Iterator[Sample]:
    forks = [fork(length) for length in LENGTHS]
    graph = [*map(turn, LENGTHS), "graph-whole", "graph-size", "graph-size-whole", "graph-get"]
    talk = ["agents-add", "agents-get", "agents-last", "agents-size"]
    store = ["put", "get", "search", "filter", "words", "vector", "open"]
    for wanted, measured in (
        ([*graph, "graph-open", "graph-fork-size", *forks], _graph),
        (talk, _talk),
        ([f"store-{verb}" for verb in store], _store),
    ):
        if plan.wants(*wanted):
            settle_disk()
            yield from measured(plan)


def versions() -> str:
    words = [sys.executable, str(CHILD), "versions", ".", *PACKAGES]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return "; ".join(f"{name} {text}" for name, text in json.loads(done.stdout).items())


def _started(
    plan: Plan, kinds: dict[str, str], peers: dict[str, str], home: str
) -> AbstractContextManager[Sequence[Peer]]:
    chosen = {**kinds, **(peers if plan.peers else {})}
    if not plan.ours:
        chosen = {name: kind for name, kind in chosen.items() if not kind.startswith("ortet")}
    place = plan.place / home
    place.mkdir()
    return running(Path(sys.executable), chosen, place, child=CHILD)


def _graph(plan: Plan) -> Iterator[Sample]:
    counts, texts = plan.counts, session_text.messages()
    middles = {length // 2 for length in counts.lengths}
    with _started(plan, SAVERS, SQUARE, "graph") as peers:
        spent: dict[str, list[float]] = {peer.name: [] for peer in peers}
        for number in range(1, counts.lengths[-1] + 1):
            user, assistant = next(texts), next(texts)
            for peer in _still(plan, peers, number):
                answer = peer.ask("turn", user=user, assistant=assistant)
                spent[peer.name].append(answer["ms"])
                if number in middles:
                    peer.ask("mark", at=number)
            if number in counts.lengths:
                name = LENGTHS[counts.lengths.index(number)]
                yield from _at_length(plan, peers, spent, number, name)
        for peer in peers:
            if peer.name not in SQUARE:
                yield Sample("graph-whole", peer.name, [sum(spent[peer.name]) / 1000], peer.note)


def _still(plan: Plan, peers: Sequence[Peer], number: int) -> list[Peer]:
    return [peer for peer in peers if number <= plan.counts.square or peer.name not in SQUARE]


def _at_length(
    plan: Plan, peers: Sequence[Peer], spent: dict[str, list[float]], number: int, name: int
) -> Iterator[Sample]:
    counts, text = plan.counts, next(session_text.messages(5))
    for peer in _still(plan, peers, number):
        size = peer.rest()
        note = peer.note
        if peer.name in SQUARE and number == counts.square:
            note += "; stopped here: it writes all messages anew at every step"
        yield Sample(turn(name), peer.name, spent[peer.name][-counts.edge :], note)
        kept = "InMemory" not in peer.name
        if name == HALF:
            found = peer.ask("get", count=counts.gets)
            assert found["messages"] == 2 * number, (peer.name, found["messages"])
            yield Sample("graph-get", peer.name, found["ms"], peer.note)
            if kept:
                yield Sample("graph-size", peer.name, [size / KB], peer.note)
                found = peer.ask("open", count=max(2, counts.gets // 10))
                yield Sample("graph-open", peer.name, found["ms"], peer.note)
        if name == LENGTHS[-1] and kept:
            yield Sample("graph-size-whole", peer.name, [size / KB], peer.note)
        before = peer.rest()
        found = peer.ask("fork", at=number // 2, count=counts.forks, text=text)
        yield Sample(fork(name), peer.name, found["ms"], peer.note)
        if kept:
            each = (peer.rest() - before) / KB / counts.forks
            yield Sample("graph-fork-size", f"{peer.name}, {name}", [each])


def _talk(plan: Plan) -> Iterator[Sample]:
    counts, texts = plan.counts, session_text.messages()
    with _started(plan, SESSIONS, {ASESSION: "sqlite-session"}, "talk") as peers:
        spent: dict[str, list[float]] = {peer.name: [] for peer in peers}
        for _ in range(counts.talk):
            user, assistant = next(texts), next(texts)
            for peer in peers:
                spent[peer.name].append(peer.ask("turn", user=user, assistant=assistant)["ms"])
        for peer in peers:
            size = peer.rest()
            found = peer.ask("get", count=counts.gets)
            assert found["messages"] == 2 * counts.talk
            last = peer.ask("get", count=counts.gets, limit=10)
            yield Sample("agents-add", peer.name, spent[peer.name], peer.note)
            yield Sample("agents-get", peer.name, found["ms"], peer.note)
            yield Sample("agents-last", peer.name, last["ms"], peer.note)
            yield Sample("agents-size", peer.name, [size / KB], peer.note)


def _store(plan: Plan) -> Iterator[Sample]:
    counts = plan.counts
    texts = list(islice(session_text.messages(), counts.items + counts.puts))
    queries = [text[:60] for text in islice(session_text.messages(3), counts.searches)]
    with _started(plan, STORES, {ASTORE: "sqlite-store"}, "store") as peers:
        for peer in peers:
            peer.ask("fill", texts=texts[: counts.items], first=0)
        found: dict[tuple[str, str], list[float]] = {}

        def asked(verb: str, **values: object) -> None:
            for peer in peers:
                spent = peer.ask(verb, **values)["ms"]
                if spent is not None:  # else it cannot
                    found.setdefault((f"store-{verb}", peer.name), []).append(spent)

        asked("open")
        for peer in peers:  # a first time, which reads what is kept at hand from then on
            for verb in ("words", "vector"):
                peer.ask(verb, text=queries[0])
        for number in range(counts.puts):
            asked("put", number=counts.items + number, text=texts[counts.items + number])
            asked("get", number=number * 7 % counts.items)
        for number, query in enumerate(queries):
            asked("search", number=number)
            asked("filter", number=number * 11 % counts.items)
            asked("words", text=query)
            asked("vector", text=query)
        for peer in peers:
            peer.rest()
        for (row, name), values in found.items():
            note = next(peer.note for peer in peers if peer.name == name)
            if row == "store-words" and name != STORE:
                note += "; does not look at the query"
            yield Sample(row, name, values, note)
