"""serve_load.py: many clients of an HTTP server, each with one request at a time, in one process.

It does as little as it can, since it shares its cores with the server: one thread, an epoll,
requests that were made before, answers of which the head alone is looked at. The work comes on
standard input, the times go to standard output.
"""

from __future__ import annotations

import heapq
import select
import socket
import sys
import time

import msgspec

PATIENCE = 60.0


class Work(msgspec.Struct, frozen=True):
    """`requests`: those of each client, in turn, for ever. Of each `of` requests the last is timed.
    `count`: answers of each that are timed, once all clients had `warm` that could be and are not.
    `seconds`: after which a client asks no more. `every`: from one timed request of a client to its
    next; 0: at once."""

    host: str
    port: int
    requests: list[list[bytes]]
    count: int
    warm: int = 0
    of: int = 1
    seconds: float = PATIENCE
    every: float = 0.0


class Told(msgspec.Struct, frozen=True):
    """Milliseconds of what was timed, the seconds that it took altogether, and the first answer
    that was an error, if one was."""

    times: list[float]
    seconds: float
    bad: bytes = b""


class _Client:
    """A connection that is kept."""

    def __init__(self, work: Work, number: int) -> None:
        self._requests = work.requests[number]
        self.number = number
        self.asked = 0
        self.begun = 0.0
        self.due = 0.0
        self._seen = b""
        self.socket = socket.create_connection((work.host, work.port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self) -> None:
        request = self._requests[self.asked % len(self._requests)]
        self.asked += 1
        self.begun = time.perf_counter()
        self.socket.sendall(request)

    def read(self) -> bytes | None:
        """The whole answer, once it is there."""
        part = self.socket.recv(1 << 18)
        if not part:
            raise SystemExit(f"the server ended the connection: {self._seen[:500]!r}")
        seen = self._seen = self._seen + part
        end = seen.find(b"\r\n\r\n")
        if end < 0:
            return None
        at = seen.find(b"content-length: ", 0, end) + 16
        if len(seen) < end + 4 + int(seen[at : seen.find(b"\r", at)]):
            return None
        self._seen = b""
        return seen


class _Drive:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._clients = [_Client(work, number) for number in range(len(work.requests))]
        self._poll = select.epoll()
        self._by_file = {one.socket.fileno(): one for one in self._clients}
        for file in self._by_file:
            self._poll.register(file, select.EPOLLIN)
        self._waiting: list[tuple[float, int]] = []  # when each is to ask next
        self._running = len(self._clients)
        self._times: list[float] = []
        self._bad = b""
        self._cold = self._running if work.warm else 0
        self._begin = self._end = 0.0

    def run(self) -> Told:
        self._start()
        while self._running:
            now = time.perf_counter()
            while self._waiting and self._waiting[0][0] <= now:
                self._clients[heapq.heappop(self._waiting)[1]].ask()
            pause = max(0.0, self._waiting[0][0] - now) if self._waiting else PATIENCE
            ready = self._poll.poll(pause)
            if not ready and not self._waiting:
                raise SystemExit(f"no answer in {PATIENCE:.0f} s")
            for file, _ in ready:
                one = self._by_file[file]
                answer = one.read()
                if answer is not None:
                    self._answered(one, answer)
        for one in self._clients:
            one.socket.close()
        return Told(self._times, self._end - self._begin, self._bad)

    def _start(self) -> None:
        self._begin = time.perf_counter()
        for one in self._clients:
            # not all at once: clients do not know of one another
            one.due = self._begin + self._work.every * one.number / len(self._clients)
            heapq.heappush(self._waiting, (one.due, one.number))

    def _answered(self, one: _Client, answer: bytes) -> None:
        work, now = self._work, time.perf_counter()
        if not answer.startswith(b"HTTP/1.1 2") and not self._bad:
            self._bad = answer[:2000]
        rounds, rest = divmod(one.asked, work.of)
        if rest:
            one.ask()
            return
        if rounds == work.warm:
            self._cold -= 1
            if not self._cold:
                self._start()
            return
        if rounds > work.warm:
            self._end = now
            self._times.append((now - one.begun) * 1000)
        if rounds == work.warm + work.count or (
            rounds > work.warm and now > self._begin + work.seconds
        ):
            self._running -= 1
        elif work.every:
            one.due = max(one.due + work.every, now)
            heapq.heappush(self._waiting, (one.due, one.number))
        else:
            one.ask()


def main() -> None:
    work = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Work)
    sys.stdout.buffer.write(msgspec.msgpack.encode(_Drive(work).run()))


if __name__ == "__main__":
    main()
