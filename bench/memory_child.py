"""One system of the memory part in a process of its own: for each line of JSON it reads it begins a
dialogue, remembers texts or answers questions, and says how long that took. It reaches no network.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from memory_embedder import Embedder
from memory_systems import BUILDERS, WITHOUT, Ortet, System
from session_peer import Wire


def no_network(event: str, arguments: tuple[Any, ...]) -> None:
    """Whatever a library would send home: only this host may be reached."""
    if event == "socket.getaddrinfo" and arguments[0] not in ("localhost", "127.0.0.1", "::1"):
        raise ConnectionRefusedError(f"{arguments[0]} is not this host")
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        address = str(arguments[1][0])
        if not address.startswith("127.") and address != "::1":
            raise ConnectionRefusedError(f"{address} is not this host")


def resident() -> float:
    """Megabytes now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def serve(wire: Wire, system: System, embedder: Embedder | None) -> None:
    for request in wire.requests():
        if request["do"] == "begin":
            system.begin(request["name"])
            wire.answer()
        elif request["do"] == "add":
            begin = time.perf_counter()
            system.add(request["texts"])
            wire.answer(seconds=time.perf_counter() - begin)
        elif request["do"] == "query":
            found, spent = [], []
            if embedder is not None:
                embedder.prepare(request["texts"])
            for text in request["texts"]:
                begin = time.perf_counter()
                found.append(system.query(text, request["k"]))
                spent.append((time.perf_counter() - begin) * 1000)
            wire.answer(found=found, ms=spent)
        elif request["do"] == "resident":
            gc.collect()
            wire.answer(megabytes=resident())
    if isinstance(system, Ortet):  # it is opened again, by another process
        system.close()


def main() -> None:
    name, place = sys.argv[1], Path(sys.argv[2])
    wire = Wire()
    sys.addaudithook(no_network)
    logging.disable(logging.WARNING)  # wordllama turns logging on for all, which costs others time
    if name == "versions":
        wire.answer(**{package: version(package) for package in sys.argv[3:]})
    else:
        embedder = None if name in WITHOUT else Embedder()
        serve(wire, BUILDERS[name](place, embedder), embedder)


if __name__ == "__main__":
    main()
