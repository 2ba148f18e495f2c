"""A program that holds one of each thing that is hard to carry, and says on request whether all
are as they were. Run inside a machine by tests; standard library only."""

from __future__ import annotations

import fcntl
import mmap
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable


class Odds:
    """Each `check_…` uses a thing for real, and raises or is False when that does not do."""

    def __init__(self) -> None:
        self.work: queue.Queue[int] = queue.Queue()
        self.results: queue.Queue[int] = queue.Queue()
        self.local = threading.local()
        self.threads = [threading.Thread(target=self._square, daemon=True) for _ in range(3)]
        for thread in self.threads:
            thread.start()
        self.gone = open("gone", "w+b")  # noqa: SIM115 - it stays open, that is the point
        self.gone.write(b"deleted, but here")
        self.gone.flush()
        os.unlink("gone")
        self.renamed = open("renamed-1", "w+b")  # noqa: SIM115
        self.renamed.write(b"one of two names")
        self.renamed.flush()
        os.link("renamed-1", "renamed-2")
        os.unlink("renamed-1")
        self.left, self.right = socket.socketpair()
        self.left.send(b"on its way")
        self.receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.receiver.bind(("127.0.0.1", 0))
        self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sender.connect(self.receiver.getsockname())
        self.lock = open("lock", "w")  # noqa: SIM115
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        os.mkfifo("fifo")
        self.fifo = os.open("fifo", os.O_RDWR)
        os.write(self.fifo, b"in the fifo")
        self.stopped = self._child(self._count)
        os.read(self.counted, 1)
        os.kill(self.stopped, signal.SIGSTOP)
        os.waitpid(self.stopped, os.WUNTRACED)
        self.zombie = self._child(lambda: os._exit(7))
        os.waitid(os.P_PID, self.zombie, os.WEXITED | os.WNOWAIT)
        with open("shared", "w+b") as file:
            file.truncate(8192)
            self.shared = mmap.mmap(file.fileno(), 8192)
        self.anonymous = mmap.mmap(-1, 4096)
        self.sharer = self._child(self._share)
        self.memfd = os.memfd_create("odds")
        os.write(self.memfd, b"in no directory")
        self.poll = select.epoll()
        self.poll.register(self.right, select.EPOLLIN)
        self.told = 0
        signal.signal(signal.SIGUSR1, self._on_signal)
        self.timed = 0
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)

    def _child(self, deed: Callable[[], object]) -> int:
        if not hasattr(self, "counted"):
            self.counted, self.tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                deed()
            finally:
                os._exit(1)
        return pid

    def _square(self) -> None:
        self.local.held = 0
        while True:
            number = self.work.get()
            self.local.held += 1
            self.results.put(number * number)

    def _count(self) -> None:
        while True:
            os.write(self.tell, b"x")
            time.sleep(0.01)

    def _share(self) -> None:
        """Answers through memory that it shares with its parent."""
        while True:
            if self.anonymous[0] == 1:
                self.anonymous[1:9] = bytes(reversed(self.anonymous[1:9]))
                self.anonymous[0] = 0
            time.sleep(0.005)

    def _on_signal(self, *_: object) -> None:
        self.told += 1

    def _on_alarm(self, *_: object) -> None:
        self.timed += 1

    # each is asked any number of times

    def check_threads(self) -> bool:
        for number in range(30):
            self.work.put(number)
        return sorted(self.results.get(timeout=30) for _ in range(30)) == [n * n for n in range(30)]

    def check_deleted_file(self) -> bool:
        self.gone.seek(0)
        said = self.gone.read()
        self.gone.write(b"!")
        self.gone.flush()
        return said.startswith(b"deleted, but here") and not os.path.exists("gone")

    def check_other_name(self) -> bool:
        self.renamed.seek(0)
        self.renamed.write(os.urandom(4).hex().encode())
        self.renamed.flush()
        self.renamed.seek(0)
        with open("renamed-2", "rb") as file:
            return file.read() == self.renamed.read() and not os.path.exists("renamed-1")

    def check_socket_pair(self) -> bool:
        ready = bool(self.poll.poll(5))
        said = self.right.recv(100)
        self.left.send(b"on its way")
        return ready and said == b"on its way"

    def check_udp(self) -> bool:
        self.sender.send(b"datagram")
        return self.receiver.recv(100) == b"datagram"

    def check_flock(self) -> bool:
        with open("lock") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def check_fifo(self) -> bool:
        said = os.read(self.fifo, 100)
        os.write(self.fifo, b"in the fifo")
        return said == b"in the fifo"

    def check_stopped(self) -> bool:
        with open(f"/proc/{self.stopped}/stat") as file:
            state = file.read().rsplit(")")[1].split()[0]
        while select.select([self.counted], [], [], 0)[0]:
            os.read(self.counted, 4096)
        os.kill(self.stopped, signal.SIGCONT)
        went_on = os.read(self.counted, 1) == b"x"
        os.kill(self.stopped, signal.SIGSTOP)
        os.waitpid(self.stopped, os.WUNTRACED)
        return state == "T" and went_on

    def check_zombie(self) -> bool:
        found = os.waitid(os.P_PID, self.zombie, os.WEXITED | os.WNOWAIT)
        return found is not None and found.si_status == 7

    def check_shared_file(self) -> bool:
        self.shared[:4] = os.urandom(4)
        with open("shared", "rb") as file:
            return file.read(4) == self.shared[:4]

    def check_shared_memory(self) -> bool:
        self.anonymous[1:9] = b"12345678"
        self.anonymous[0] = 1
        for _ in range(1000):
            if self.anonymous[0] == 0:
                return self.anonymous[1:9] == b"87654321"
            time.sleep(0.01)
        return False

    def check_memfd(self) -> bool:
        return os.pread(self.memfd, 100, 0) == b"in no directory"

    def check_signal(self) -> bool:
        before = self.told
        os.kill(os.getpid(), signal.SIGUSR1)
        return self.told == before + 1

    def check_timer(self) -> bool:
        before = self.timed
        for _ in range(1000):
            if self.timed > before:
                return True
            time.sleep(0.01)
        return False


def main() -> None:
    odds = Odds()
    names = [name for name in dir(odds) if name.startswith("check_")]
    print("ready", flush=True)
    for _ in iter(sys.stdin.readline, ""):
        bad = []
        for name in names:
            try:
                if not getattr(odds, name)():
                    bad.append(name)
            except Exception as error:
                bad.append(f"{name}: {error!r}")
        print(f"{len(names) - len(bad)} good" + "".join(f"; {name}" for name in bad), flush=True)


if __name__ == "__main__":
    main()
