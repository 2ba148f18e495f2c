"""What runs inside the machines of the live rows; answers each line of its input with one.

`live_program.py [MIB | server | client | ticker]`: holds so many MiB of random bytes; or is one end
of a connection; or looks at the clock all the time, to tell how long it did not run.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import zlib

PORT = 3000


class Ticker:
    """Notes the longest time between two looks at the clock."""

    def __init__(self) -> None:
        self.longest = 0.0

    def run(self) -> None:
        last = time.monotonic()
        while True:
            now = time.monotonic()
            self.longest = max(self.longest, now - last)
            last = now
            time.sleep(0.0005)


def fork() -> float:
    """fork(2) until the child has answered, in milliseconds."""
    told, tell = os.pipe()
    begin = time.perf_counter()
    pid = os.fork()
    if not pid:
        os.write(tell, b"x")
        os._exit(0)
    os.read(told, 1)
    spent = time.perf_counter() - begin
    os.waitpid(pid, 0)
    os.close(told)
    os.close(tell)
    return spent * 1000


def serve() -> None:
    with socket.create_server(("127.0.0.1", PORT)) as listener:
        print("listening", flush=True)
        talk, _ = listener.accept()
        while data := talk.recv(100):
            talk.sendall(data)


def main() -> None:
    kind = sys.argv[1]
    if kind == "server":
        serve()
    talk = socket.create_connection(("127.0.0.1", PORT)) if kind == "client" else None
    held = bytearray(int(kind) << 20 if kind.isdigit() else 0)
    for at in range(0, len(held), 1 << 20):
        held[at : at + (1 << 20)] = os.urandom(1 << 20)
    ticker = Ticker()
    if kind == "ticker":
        threading.Thread(target=ticker.run, daemon=True).start()
    for line in iter(sys.stdin.readline, ""):
        word = line.strip()
        answer: object = word
        if word == "sum":
            answer = zlib.crc32(held)
        elif word == "fork":
            answer = fork()
        elif word == "gap":
            answer, ticker.longest = ticker.longest * 1000, 0.0
        elif talk is not None:
            talk.sendall(word.encode())
            answer = talk.recv(100).decode()
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
