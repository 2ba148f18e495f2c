"""serve_embedded.py: the calls that the server makes, without it: from threads of one process, each
with a hub and a session of its own. Work comes on standard input, times go to standard output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from threading import Barrier, Thread

import msgspec

import ortet
from serve_load import Told

BEGIN = 120.0


class Calls(msgspec.Struct, frozen=True):
    """`sessions`: the name of each caller's; the same name several times is one session of which
    all are threads. The rest is as in serve_load."""

    store: str
    verb: str
    sessions: list[str]
    texts: list[str]
    count: int
    warm: int = 0
    seconds: float = 60.0
    every: float = 0.0


Deed = Callable[[str], object]


def deeds(verb: str, session: ortet.Session) -> tuple[Deed, Deed]:
    """What is done before each call, and the call."""

    def nothing(_: str) -> None:
        return

    def say(text: str) -> object:
        return session.say("user", text)

    def fork(_: str) -> None:
        for one in session.fork(1, machine=False):
            one.pause()

    return {
        "say": (nothing, say),
        "commit": (say, lambda text: session.commit(text[:40])),
        "fork": (nothing, fork),
        "recall": (nothing, lambda text: session.recall(text[:60], k=5)),
    }[verb]


class _Callers:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._together = Barrier(len(calls.sessions))
        self._times: list[float] = []
        self._first: list[float] = []
        self._last: list[float] = []
        self._failed: list[BaseException] = []

    def run(self) -> Told:
        named = dict.fromkeys(self._calls.sessions)
        hubs = {name: ortet.open(self._calls.store) for name in named}
        opened = {name: hub.session(name) for name, hub in hubs.items()}
        threads = [
            Thread(target=self._work, args=(number, opened[name]))
            for number, name in enumerate(self._calls.sessions)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for hub in hubs.values():
            hub.close()
        if self._failed:
            raise self._failed[0]
        return Told(self._times, max(self._last) - min(self._first))

    def _work(self, number: int, session: ortet.Session) -> None:
        try:
            self._call(number, session)
        except BaseException as error:
            self._failed.append(error)
            self._together.abort()

    def _call(self, number: int, session: ortet.Session) -> None:
        calls, times = self._calls, list[float]()
        before, deed = deeds(calls.verb, session)
        for text in calls.texts[: calls.warm]:
            before(text)
            deed(text)
        self._together.wait(BEGIN)
        begin = time.perf_counter()
        due = begin + calls.every * number / len(calls.sessions)
        for turn in range(calls.count):
            text = calls.texts[turn % len(calls.texts)]
            if calls.every:
                time.sleep(max(0.0, due - time.perf_counter()))
                due = max(due + calls.every, time.perf_counter())
            before(text)
            begin_one = time.perf_counter()
            deed(text)
            end = time.perf_counter()
            times.append((end - begin_one) * 1000)
            if end - begin > calls.seconds:
                break
        self._times += times
        self._first.append(begin)
        self._last.append(end)


def main() -> None:
    calls = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Calls)
    sys.stdout.buffer.write(msgspec.msgpack.encode(_Callers(calls).run()))


if __name__ == "__main__":
    main()
