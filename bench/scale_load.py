"""Some of those who append at the same time, in one process: a thread and a session each, or a bare
connection each. `begin` makes all ready, `go` runs them for some seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle, islice
from threading import Barrier, Thread
from typing import Any

import psycopg

import ortet
import session_text
from session_peer import Wire

Deed = Callable[[str], object]
TEXTS = 40
WAIT = 120.0


def of_ortet(url: str, names: list[str], stack: ExitStack) -> list[Deed]:
    deeds: list[Deed] = []
    for name in names:
        session = stack.enter_context(ortet.open(url)).session(name)
        deeds.append(lambda text, session=session: session.say("user", text))  # type: ignore[misc]
    return deeds


def bare(url: str, names: list[str], stack: ExitStack) -> list[Deed]:
    deeds: list[Deed] = []
    insert = "INSERT INTO bare (body) VALUES (%s)"
    for _ in names:
        connection = stack.enter_context(psycopg.connect(url, autocommit=True))
        deeds.append(
            lambda text, one=connection: one.execute(insert, (text.encode(),), prepare=True)  # type: ignore[misc]
        )
    return deeds


class Load:
    def __init__(self, deeds: list[Deed], seconds: float) -> None:
        self._deeds, self._seconds = deeds, seconds
        self._together = Barrier(len(deeds))
        self._texts = list(islice(session_text.messages(), TEXTS))
        self.times: list[float] = []
        self.failed: list[BaseException] = []

    def run(self) -> None:
        threads = [Thread(target=self._work, args=(deed,)) for deed in self._deeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failed:
            raise self.failed[0]

    def _work(self, deed: Deed) -> None:
        try:
            deed(self._texts[0])
            self._together.wait(WAIT)
            end = time.perf_counter() + self._seconds
            times: list[float] = []
            for text in cycle(self._texts):
                begin = time.perf_counter()
                if begin > end and times:
                    break
                deed(text)
                times.append((time.perf_counter() - begin) * 1000)
            self.times += times
        except BaseException as error:
            self.failed.append(error)
            self._together.abort()


def main() -> None:
    kind, wire = sys.argv[1], Wire()
    requests = wire.requests()
    with ExitStack() as stack:
        given: dict[str, Any] = next(requests)
        opened = bare if kind.startswith("bare") else of_ortet
        load = Load(opened(given["url"], given["names"], stack), given["seconds"])
        wire.answer()
        for _ in requests:
            before = time.process_time()
            load.run()
            spent = time.process_time() - before
            wire.answer(ms=load.times, cpu=spent * 1e6)


if __name__ == "__main__":
    main()
