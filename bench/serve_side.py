"""Ortet's server beside the same calls without it, on copies of one store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec

import ortet
import serve_mcp
import serve_page
import session_text
from measure import Sample, ordinary_environment, settle_disk
from serve_embedded import Calls
from serve_load import Told, Work
from serve_plan import Plan
from serve_rows import (
    BUSY,
    EMBEDDED,
    HTTP,
    LOADS,
    ONE_SESSION,
    PAUSED,
    SIZES,
    VERBS,
    latency,
    paced,
    rate,
)

HERE = Path(__file__).parent
OWN, FLOOR = "serve-own", "serve-floor"
WARM = 3
CROWD = 64  # clients that warm the server by their number


class Load(msgspec.Struct, frozen=True):
    """How one verb is asked for: by so many, so often."""

    row: str
    verb: str
    clients: int
    count: int
    every: float = 0.0
    shared: bool = False

    @property
    def warm(self) -> int:
        return 1 if self.clients > CROWD else WARM


def all_rows(plan: Plan) -> Iterator[Sample]:
    if plan.wants(FLOOR):
        yield _floor(plan)
    if plan.wants(*LOADS, *map(rate, LOADS), PAUSED, BUSY, OWN):
        yield from _all_loads(plan)
    if plan.browser and plan.wants("page-paint", "page-scroll"):
        settle_disk()
        yield from serve_page.all_rows(plan)
    if plan.wants("mcp-start"):
        yield from serve_mcp.all_rows(plan)


def loads(plan: Plan) -> Iterator[Load]:
    counts = plan.counts
    for verb in ("recall", "say", "commit", "fork"):  # what adds least to the store goes first
        for size, clients in zip(SIZES, counts.clients, strict=True):
            each = max(counts.least, counts.answers // clients)
            yield Load(latency(verb, size), verb, clients, min(each, counts.answers // 2))
        yield Load(paced(verb), verb, counts.middle, counts.paced, 1 / counts.rate)
    each = max(counts.least, counts.answers // counts.middle)
    yield Load(ONE_SESSION, "say", counts.middle, each, shared=True)


def _all_loads(plan: Plan) -> Iterator[Sample]:
    served, called = plan.place / "served", plan.place / "called"
    names = _sessions(plan, served)
    shutil.copytree(served, called)
    found: dict[tuple[str, str], Sample] = {}
    with serving(served, plan.place, "--limit", "rate=0") as server:
        clients = _Clients(server, plan)
        if plan.wants(OWN):
            told = clients.asking("GET", "/healthz")
            yield Sample(OWN, "ortet", told.times, f"{_rate(told):.0f} a second")
        for load in loads(plan):
            if not _wanted(plan, load):
                continue
            settle_disk()
            note = f"{load.clients}, paced" if load.every else str(load.clients)
            for system, told in (
                (HTTP, clients.told(load, names)),
                (EMBEDDED, _embedded(plan, load, called, names)),
            ):
                sample = Sample(load.row, system, told.times, note)
                found[load.row, system] = sample
                yield sample
                yield Sample(rate(load.row), system, [_rate(told)])
    for row, of in ((PAUSED, paced), (BUSY, lambda verb: latency(verb, "some"))):
        for verb in VERBS:
            http, ours = found.get((of(verb), HTTP)), found.get((of(verb), EMBEDDED))
            if http is not None and ours is not None:
                yield Sample(row, f"ortet, {verb}", [http.p50 - ours.p50])


def _floor(plan: Plan) -> Sample:
    """What no server in Python is under, with the same client on the same cores."""
    with _started([sys.executable, str(HERE / "serve_floor.py")], plan.place) as (host, port):
        clients = _Clients(Server(host, port, ""), plan)
        told = clients.asking("POST", "/messages", {"role": "user", "content": "x" * 200})
    return Sample(FLOOR, "Starlette alone", told.times, f"{_rate(told):.0f} a second")


def _wanted(plan: Plan, load: Load) -> bool:
    for_adding = BUSY if load.row.endswith(SIZES[1]) else PAUSED if load.every else load.row
    return plan.wants(load.row, rate(load.row), for_adding)


def _rate(told: Told) -> float:
    return len(told.times) / told.seconds if told.seconds > 0 else 0.0


def _sessions(plan: Plan, store: Path) -> list[str]:
    """One for each client, with some messages, committed, and found by recall."""
    texts = session_text.messages(5)
    names = [f"client-{number}" for number in range(max(plan.counts.clients))]
    with ortet.open(store) as hub:
        for name in names:
            with hub.session(name) as session:
                session.say_all([("user", one) for one in islice(texts, plan.counts.messages)])
                session.commit("before")
                session.recall("token", k=1)  # it is in the index
    return names


class Server(msgspec.Struct, frozen=True):
    host: str
    port: int
    token: str


@contextmanager
def serving(store: Path, place: Path, *options: str) -> Iterator[Server]:
    """`ortet serve`, a process of its own."""
    env = {**ordinary_environment(), "ORTET_URL": str(store), "ORTET_AGENT": "off"}
    ours = [sys.executable, "-m", "ortet"]
    made = subprocess.run(
        [*ours, "access", "create", "bench", "--json"], env=env, check=True, capture_output=True
    )
    command = [*ours, "serve", "--port", "0", "--json", *options]
    with _started(command, place, env) as (host, port):
        yield Server(host, port, json.loads(made.stdout)["token"])


@contextmanager
def _started(
    command: list[str], place: Path, env: dict[str, str] | None = None
) -> Iterator[tuple[str, int]]:
    """A server, which says where it is when it is ready."""
    log = place / "server.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            env=env or ordinary_environment(),
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the server did not start: {log.read_text()}")
        at = urlsplit(json.loads(line)["url"])
        yield at.hostname or "", at.port or 0
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


class _Clients:
    def __init__(self, server: Server, plan: Plan) -> None:
        self._server = server
        self._counts = plan.counts
        self._texts = list(islice(session_text.messages(), 40))

    def asking(self, method: str, path: str, body: object = None) -> Told:
        """The same of all, without a pause."""
        request = self._request(method, path, body)
        clients, each = self._counts.middle, self._counts.answers // self._counts.middle
        return self._driven(Work("", 0, [[request]] * clients, each, WARM))

    def told(self, load: Load, names: list[str]) -> Told:
        sessions = [names[0 if load.shared else number] for number in range(load.clients)]
        requests = [self._requests(load.verb, name) for name in sessions]
        of = 2 if load.verb == "commit" else 1
        seconds = self._counts.seconds + load.every * load.count
        return self._driven(
            Work("", 0, requests, load.count, load.warm, of=of, seconds=seconds, every=load.every)
        )

    def _driven(self, work: Work) -> Told:
        server = self._server
        told = driven(
            "serve_load.py", msgspec.structs.replace(work, host=server.host, port=server.port)
        )
        if told.bad:
            raise SystemExit(f"the server refused: {told.bad.decode('utf-8', 'replace')}")
        return told

    def _requests(self, verb: str, name: str) -> list[bytes]:
        at = f"/sessions/{name}"
        found = []
        for text in self._texts:
            if verb in ("say", "commit"):
                said = {"role": "user", "content": text}
                found.append(self._request("POST", f"{at}/messages", said))
            if verb == "commit":
                found.append(self._request("POST", f"{at}/commits", {"message": text[:40]}))
            elif verb == "fork":
                found.append(self._request("POST", f"{at}/forks", {"machine": False}))
            elif verb == "recall":
                found.append(self._request("GET", f"{at}/recall?query={quote(text[:60])}&k=5"))
        return found

    def _request(self, method: str, path: str, body: object = None) -> bytes:
        server = self._server
        raw = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{method} {path} HTTP/1.1",
            f"host: {server.host}:{server.port}",
            f"authorization: Bearer {server.token}",
        ]
        if body is not None:
            lines += ["content-type: application/json", f"content-length: {len(raw)}"]
        return "\r\n".join([*lines, "\r\n"]).encode() + raw


def _embedded(plan: Plan, load: Load, store: Path, names: list[str]) -> Told:
    counts = plan.counts
    calls = Calls(
        str(store),
        load.verb,
        [names[0 if load.shared else number] for number in range(load.clients)],
        list(islice(session_text.messages(), 40)),
        load.count,
        load.warm,
        seconds=counts.seconds + load.every * load.count,
        every=load.every,
    )
    return driven("serve_embedded.py", calls)


def driven(program: str, work: Work | Calls) -> Told:
    """In a process of its own, with nothing of ours beside it."""
    done = subprocess.run(
        [sys.executable, str(HERE / program)],
        input=msgspec.msgpack.encode(work),
        stdout=subprocess.PIPE,
        env={**ordinary_environment(), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{program} failed: see above")
    return msgspec.msgpack.decode(done.stdout, type=Told)
