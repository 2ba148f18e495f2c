"""Ortet's sessions, each row beside what it is compared with: one of ours, one of theirs, so that
whatever else the machine does hits both."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import apsw

import kernel_side
import ortet
import session_peers
import session_text
from measure import Sample, disk_bytes, milliseconds, now, ordinary_environment, settle_disk
from session_peers import Peer
from session_plan import Bare, Plan

KB, MB = 1000, 1_000_000
THREADS = 4
NAME = "bench"


def all_rows(plan: Plan) -> Iterator[Sample]:
    for wanted, measured in (
        (("append", "append-normal"), _append),
        (("group",), _group),
        (("turn", "turn-half", "turn-flat", "turn-size", "turn-size-half", "turn-trim"), _turns),
        (("mind-fork", "mind-swarm", "mind-bytes"), _fork),
        (("swarm-task",), _swarm),
        (kernel_side.ROWS, kernel_side.all_rows),
        (("mind-open",), _open),
        (("step", "step-size"), _steps),
    ):
        if plan.wants(*wanted):
            settle_disk()
            yield from measured(plan)


def _append(plan: Plan) -> Iterator[Sample]:
    """One say, one bare insert of the same text, in turn; then the same with synchronous=NORMAL."""
    for row, level in (("append", "FULL"), ("append-normal", "NORMAL")):
        home = plan.place / row
        home.mkdir()
        bare = Bare(home / "bare.db", level)
        ours: list[float] = []
        theirs: list[float] = []
        with ortet.open(home / "store") as hub:
            _set_synchronous(hub, level)
            session = hub.session(NAME)
            for text in islice(session_text.messages(), plan.counts.appends):
                body = text.encode()
                ours.append(milliseconds(partial(session.say, "user", text)))
                theirs.append(milliseconds(partial(bare.insert, body)))
        bare.close()
        yield Sample(row, "ortet", ours, f"synchronous={level}")
        yield Sample(row, "bare apsw insert", theirs, f"WAL, synchronous={level}")


def _set_synchronous(hub: ortet.Hub, level: str) -> None:
    """Not offered to users: an acknowledged event must survive a power cut."""
    catalog: Any = hub.catalog
    with catalog._handle as db:
        db.execute(f"PRAGMA synchronous = {level}")


def _group(plan: Plan) -> Iterator[Sample]:
    """From the first event until `pause` came back: then all of them are on the disk."""
    texts = list(islice(session_text.messages(), 1000))
    for threads in (1, THREADS):
        each = plan.counts.group // threads
        with ortet.open(plan.place / f"group-{threads}") as hub:
            session = hub.session(NAME, durability="group")

            def work(session: ortet.Session = session, each: int = each) -> None:
                for number in range(each):
                    session.say("user", texts[number % len(texts)])

            workers = [threading.Thread(target=work) for _ in range(threads)]
            begin = now()
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            session.pause()
            rate = each * threads / (now() - begin)
        name = "ortet, 1 thread" if threads == 1 else f"ortet, {threads} threads"
        yield Sample("group", name, [rate], f"{each * threads} events, durable at the end")


class _Talk:
    """Our side of the turns; the hub is closed and opened again to take sizes."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.begin()

    def begin(self) -> None:
        self._hub = ortet.open(self.store)
        self._session = self._hub.session(NAME)

    def turn(self, user: str, assistant: str) -> None:
        self._session.say_all([("user", user), ("assistant", assistant)])

    def end(self) -> int:
        self._hub.close()
        return disk_bytes(self.store)


def _turns(plan: Plan) -> Iterator[Sample]:
    home = plan.place / "turns"
    home.mkdir()
    kinds = session_peers.TURNS if plan.peers else {}
    python = plan.peers or Path(sys.executable)
    half, whole, edge = plan.counts.turns // 2, plan.counts.turns, plan.counts.edge
    texts = session_text.messages()
    with session_peers.running(python, kinds, home / "peers") as peers:
        talk = _Talk(home / "store")
        ours: list[float] = []
        theirs: dict[str, list[float]] = {peer.name: [] for peer in peers}
        for number in range(whole):
            said = (next(texts), next(texts))
            ours.append(milliseconds(partial(talk.turn, *said)))
            for peer in peers:
                answer = peer.ask("turn", user=said[0], assistant=said[1])
                theirs[peer.name].append(answer["ms"])
            if number + 1 in (half, whole):
                at_half = number + 1 == half
                yield from _sizes(talk, peers, number + 1, "-half" if at_half else "")
                if at_half:
                    talk.begin()
        notes = {"ortet": "WAL, synchronous=FULL", **{peer.name: peer.note for peer in peers}}
    for name, values in {"ortet": ours, **theirs}.items():
        yield Sample("turn-half", name, values[:half], notes[name])
        yield Sample("turn", name, values, notes[name])
        yield Sample("turn-flat", f"{name}, first {edge}", values[:edge])
        yield Sample("turn-flat", f"{name}, last {edge}", values[-edge:])


def _sizes(talk: _Talk, peers: Any, turns: int, suffix: str) -> Iterator[Sample]:
    row, raw = f"turn-size{suffix}", 2 * turns * session_text.LENGTH
    yield Sample(row, "ortet", [talk.end() / KB], "every event; not committed")
    for size, what in _sealed(talk.store):
        yield Sample(row, f"ortet, {what}", [size / KB])
        if not suffix and what == "trimmed":
            yield Sample("turn-trim", "ortet", [size / raw], f"of {raw / KB:.0f} KB said")
    for peer in peers:
        yield Sample(row, peer.name, [peer.rest() / KB], peer.note)


def _sealed(store: Path) -> Iterator[tuple[int, str]]:
    """Sizes of a copy of the store: committed, and with the rows behind the commit trimmed."""
    copy = store.with_name("sealed")
    shutil.copytree(store, copy)
    with ortet.open(copy) as hub:
        hub.session(NAME).commit("all of it")
    yield disk_bytes(copy), "committed"
    with ortet.open(copy) as hub:
        hub.governance.retain()
        hub.verify()
    yield disk_bytes(copy), "trimmed"
    shutil.rmtree(copy)


def _long_session(plan: Plan, store: Path) -> None:
    """A session of many events, all of them committed."""
    with ortet.open(store) as hub, hub.session(NAME, durability="group") as session:
        for text in islice(session_text.messages(), plan.counts.events):
            session.say("user", text)
        session.commit("all of it")


def _fork(plan: Plan) -> Iterator[Sample]:
    """A fork and a bare insert in turn; the forks stay open, as a swarm's do."""
    store, count = plan.place / "fork", plan.counts.swarm
    _long_session(plan, store)
    bare = Bare(plan.place / "fork-bare.db")
    body = next(session_text.messages()).encode()
    ours, theirs = [], []
    with ortet.open(store) as hub:
        session = hub.session(NAME)
        session.commit()
        for _ in range(plan.counts.forks):
            ours.append(milliseconds(lambda: session.fork(1, machine=False)))
            theirs.append(milliseconds(lambda: bare.insert(body)))
    bare.close()
    yield Sample("mind-fork", "ortet", ours, f"of {plan.counts.events} events")
    yield Sample("mind-fork", "bare apsw insert", theirs, "WAL, synchronous=FULL")
    closed = disk_bytes(store)
    with ortet.open(store) as hub:
        session = hub.session(NAME)
        session.commit()
        before = _settled_size(store)
        spent = milliseconds(lambda: session.fork(count, machine=False))
        made = _settled_size(store)
    paused = disk_bytes(store)
    yield Sample("mind-swarm", "ortet", [spent / 1000])
    yield Sample("mind-bytes", "ortet, made", [(made - before) / count])
    note = "with an event and a changed row each"
    yield Sample("mind-bytes", "ortet, and paused", [(paused - closed) / count], note)


def trivial(session: Any, i: int) -> int:
    """An attempt that has nothing to do."""
    del session
    return i


def _swarm(plan: Plan) -> Iterator[Sample]:
    """Attempts from one commit, two at a time, from the call until the best is adopted and the rest
    is gone; without what the task itself takes, which for a function is nothing."""
    count, work = plan.counts.attempts, plan.place / "swarm"
    work.mkdir()
    (work / "file").write_text("golden")
    with ortet.open(plan.place / "swarm-store") as hub:
        mind = hub.session("mind")
        mind.commit("golden")
        spent = milliseconds(partial(mind.swarm, trivial, n=count, parallel=2))
        yield Sample("swarm-task", "ortet, a function", [spent / count], f"{count} attempts")
        machine = hub.session("machine", workspace=work)
        machine.commit("golden")
        (fork,) = machine.fork(1)
        own = min(milliseconds(partial(fork.run, ["true"])) for _ in range(5))
        spent = milliseconds(partial(machine.swarm, ["true"], n=count, parallel=2))
        system, note = "ortet, a command in a machine", f"its own work takes {own:.1f} ms"
        yield Sample("swarm-task", system, [spent / count - own], note)


def _settled_size(store: Path) -> int:
    """Of a store that is open: the log is moved into the database first."""
    connection = apsw.Connection(str(store / "catalog.db"))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return disk_bytes(store)


OPENER = f"""
import sys, time
import ortet
begin = time.perf_counter()
with ortet.open(sys.argv[1]) as hub:
    session = hub.session({NAME!r})
    (message,) = session.messages(last=1)
    print((time.perf_counter() - begin) * 1000)
"""


def _open(plan: Plan) -> Iterator[Sample]:
    """Until the last message is there, with the lease taken and the move to active recorded."""
    store = plan.place / "open"
    _long_session(plan, store)
    warm: list[float] = []
    whole: list[float] = []
    for _ in range(plan.counts.opens):
        begin = now()
        with ortet.open(store) as hub:
            (message,) = hub.session(NAME).messages(last=1)
            warm.append((now() - begin) * 1000)
            assert message.role == "user"
        begin = now()
        with ortet.open(store) as hub:
            count = len(hub.session(NAME).messages())
            whole.append((now() - begin) * 1000)
            assert count == plan.counts.events
    inside: list[float] = []
    process: list[float] = []
    env = ordinary_environment()
    for _ in range(plan.counts.starts):
        begin = now()
        words = [sys.executable, "-c", OPENER, str(store)]
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=env)
        process.append((now() - begin) * 1000)
        inside.append(float(done.stdout))
    yield Sample("mind-open", "ortet, new hub", warm, "in a process that had one before")
    yield Sample(
        "mind-open",
        "ortet, fresh process",
        inside,
        "behind import ortet, which loads the rest here",
    )
    yield Sample("mind-open", "ortet, the process itself", process, "from exec to exit")
    note = f"all {plan.counts.events} of them"
    yield Sample("mind-open", "ortet, every message", whole, note)


def _step(number: int, text: str) -> dict[str, object]:
    return {"number": number, "text": text}


def _steps(plan: Plan) -> Iterator[Sample]:
    """A recorded call of the same function: ours is durable before it runs, and after."""
    home = plan.place / "steps"
    home.mkdir()
    kinds = session_peers.STEPS if plan.peers else {}
    python = plan.peers or Path(sys.executable)
    ours: list[float] = []
    with session_peers.running(python, kinds, home / "peers") as peers:
        theirs: dict[str, list[float]] = {peer.name: [] for peer in peers}
        with ortet.open(home / "store") as hub:
            session = hub.session(NAME)
            for number, text in enumerate(islice(session_text.messages(), plan.counts.steps)):
                act = partial(session.act, _step, number, text, why="bench")
                ours.append(milliseconds(act))
                for peer in peers:
                    theirs[peer.name].append(_peer_step(peer, number, text))
        size = disk_bytes(home / "store")
        yield Sample("step", "ortet", ours, "WAL, synchronous=FULL; intent before, outcome after")
        yield Sample("step-size", "ortet", [size / KB])
        for peer in peers:
            held = peer.rest()
            yield Sample("step", peer.name, theirs[peer.name], peer.note)
            yield Sample("step-size", peer.name, [held / KB])


def _peer_step(peer: Peer, number: int, text: str) -> float:
    return float(peer.ask("step", number=number, text=text)["ms"])
