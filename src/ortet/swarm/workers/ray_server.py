"""The process that has attempts made by the nodes of a Ray cluster; see crew.ON_RAY.

A process of its own, so that Ray's threads, signals and logs are not the user's. Ray never repeats
a task: whether an attempt that was lost is made again is for the driver to say, who takes the old
try its right to say anything first.
"""

from __future__ import annotations

import logging
import os
import select
import selectors
import socket
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn
from urllib.parse import urlsplit

import msgspec

from ortet._util.structs import known
from ortet.errors import OrtetError, Refused, Unavailable
from ortet.machines.standalone import ipc
from ortet.swarm.workers import ray_node
from ortet.swarm.workers.client import cluster_gone
from ortet.swarm.workers.placement import CLIENT, Cluster

_LEAVE = 10.0
"""Seconds for good-byes to a cluster that may be gone."""
_CONNECT, _DEAF, _REFUSED = 120.0, 15.0, 2.0
"""Seconds for Ray to find a cluster; where nobody answers at its address, since it would go on
looking for a quarter of an hour; and where a host answers that nobody listens there."""
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "GRPC_PROXY", "HTTPS_PROXY", "HTTP_PROXY")
"""Variables by which gRPC may reach an address that this host cannot."""
_PULSE, _SILENT = 10.0, 120.0
"""Seconds between two questions to a cluster far away, and for an answer."""
_GLANCE = 0.5
"""Seconds between two looks whether Ray itself has noticed that its connection is over."""
_LOOK = 120.0
"""Seconds for a node to load the task and open the store."""
_THE_SAME = "install the same ortet[ray] on every node"


class RayServer:
    """Has each attempt made by a node that has what it needs, and tells how it ended."""

    def __init__(self, sock: socket.socket, told: dict[str, Any]) -> None:
        self._sock = sock
        self._ray: Any = import_module("ray")
        self._cluster = msgspec.convert(told["cluster"], known(Cluster))
        self._told = told
        self._refs: dict[int, Any] = {}
        self._stopped: set[int] = set()
        self._ended: deque[tuple[int, Any]] = deque()
        self._wake, self._woken = os.pipe()
        self._connect()
        self._check()
        self._perform = self._ray.remote(ray_node.perform)
        self._leaving = False
        if self._cluster.address.startswith(CLIENT):
            threading.Thread(target=self._feel, daemon=True).start()

    def serve(self) -> NoReturn:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._sock, selectors.EVENT_READ)
            waiting.register(self._wake, selectors.EVENT_READ)
            try:
                while True:
                    for key, _ in waiting.select():
                        if key.fileobj is self._sock:
                            self._hear()
                        else:
                            os.read(self._wake, 1)
                            self._tell(*self._ended.popleft())
            except ipc.Closed:
                pass
            except Exception as error:  # what Ray raises when the cluster is gone
                self._tell_gone(_line(error))
        self._leave()

    def _feel(self) -> None:
        """In a thread: whether the cluster is still there. A client whose server was killed may
        wait for it for ever, where a process of a node is ended by Ray."""
        while True:
            asked = time.monotonic()
            while time.monotonic() < asked + _PULSE and self._ray.is_initialized():
                time.sleep(_GLANCE)
            limit = threading.Timer(_SILENT, self._fall, [f"no answer within {_SILENT:g} s"])
            limit.daemon = True
            limit.start()
            try:
                self._ray.nodes()
            except Exception as error:
                self._fall(_line(error))
            limit.cancel()

    def _fall(self, why: str) -> None:
        if not self._leaving:
            self._tell_gone(why)
            os._exit(1)

    def _tell_gone(self, why: str) -> None:
        with suppress(ipc.Closed, OSError):
            ipc.send(self._sock, _told_of(cluster_gone(f" ({why})")))

    def _connect(self) -> None:
        where = self._cluster.address
        known = "RAY_ADDRESS, or a Ray of this host" if where == "auto" else where

        def refused(why: str) -> Unavailable:
            return Unavailable(
                "no_cluster",
                f"no Ray cluster answers at {known} ({why}): start one with `ray start --head`, or "
                "give the address of one that runs",
            )

        patience = _patience(where)

        def give_up() -> NoReturn:
            with suppress(ipc.Closed, OSError):
                ipc.send(self._sock, _told_of(refused(f"nobody within {patience:g} s")))
            os._exit(1)

        limit = threading.Timer(patience, give_up)
        limit.daemon = True
        limit.start()
        try:
            self._ray.init(
                address=where,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
            )
        except Exception as error:
            raise refused(_line(error)) from error
        finally:
            limit.cancel()

    def _check(self) -> None:
        """That there is a node that can do it, and that one of them reaches the store."""
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        if self._told["host"] and {node["NodeManagerHostname"] for node in nodes} != {
            os.uname().nodename
        }:
            raise ray_node.only_here(self._told["root"])
        needs = self._cluster.totals
        if not any(_has(node["Resources"], needs) for node in nodes):
            words = ", ".join(f"{name} {amount:g}" for name, amount in self._cluster.needs.items())
            raise Refused(
                "no_node",
                f"no node of the cluster has what an attempt needs ({words}): give less in needs=, "
                "or add a node that has it",
            )
        look = self._ray.remote(ray_node.look).options(num_cpus=0, max_retries=3)
        try:
            found = self._ray.get(look.remote(self._told), timeout=_LOOK)
        except self._ray.exceptions.GetTimeoutError as error:
            raise Unavailable(
                "no_node",
                f"no node of the cluster has loaded the task and opened the store in {_LOOK:g} s: "
                "`ray status` tells whether nodes live and are free; see that they reach the store",
            ) from error
        except Exception as error:
            raise Unavailable(
                "no_node",
                f"a node of the cluster cannot do it ({_line(error)}): {_THE_SAME}",
            ) from error
        if found:
            raise _Told(found)

    def _hear(self) -> None:
        message, _ = ipc.receive(self._sock)
        if "stop" in message:
            self._stop(message["stop"])
            return
        job = message["job"]
        i = int(job["i"])
        options = {
            **self._cluster.options,
            "max_retries": 0,
            "name": f"ortet {job['name']} {i}",
            "scheduling_strategy": "SPREAD",
        }
        ref = self._perform.options(**options).remote(self._told, job)
        self._stopped.discard(i)
        self._refs[i] = ref
        ref.future().add_done_callback(lambda done: self._over(i, done))

    def _over(self, i: int, done: Any) -> None:
        """In a thread of Ray."""
        self._ended.append((i, done))
        os.write(self._woken, b".")

    def _stop(self, i: int) -> None:
        if i in self._refs:
            self._stopped.add(i)
            with suppress(Exception):  # it has ended meanwhile
                self._ray.cancel(self._refs[i], force=True)

    def _tell(self, i: int, done: Any) -> None:
        del self._refs[i]
        error = done.exception()
        if error is None:
            said = done.result()
        elif i in self._stopped:
            said = {"code": -9}
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            words = f"a node could not begin it ({_line(error)}): {_THE_SAME}"
            said = {"why": "error", "error": words}
        else:
            said = {"why": "lost", "error": f"its worker was lost ({_line(error)})"}
        ipc.send(self._sock, {"i": i, **said})

    def _leave(self) -> NoReturn:
        """Nobody waits any more: what still runs is ended. Were the cluster gone, Ray would wait
        for it; so does a thread, for a while."""
        self._leaving = True
        away = threading.Thread(target=self._bye, daemon=True)
        away.start()
        away.join(_LEAVE)
        os._exit(0)

    def _bye(self) -> None:
        for i in list(self._refs):
            self._stop(i)
        with suppress(Exception):
            self._ray.shutdown()


class _Told(Exception):
    """An error as a node tells it."""

    def __init__(self, found: dict[str, Any]) -> None:
        super().__init__(found["message"])
        self.found = found


def _patience(address: str) -> float:
    """Return the seconds that Ray gets to connect to a cluster.

    Whether somebody listens at the address is only a hint: Ray may know another way to it.
    """
    named = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    found = urlsplit(named if "://" in named else f"//{named}")
    try:
        if not found.hostname or not found.port:
            return _CONNECT  # which is for Ray to say
        with socket.create_connection((found.hostname, found.port), timeout=_DEAF):
            return _CONNECT
    except ConnectionRefusedError:
        return _DEAF if any(os.environ.get(name) for name in _PROXIES) else _REFUSED
    except (OSError, ValueError):
        return _DEAF


def _end_with(sock: socket.socket) -> None:
    """When the other end is gone and this process has not ended by itself, as Ray keeps it."""
    poll = select.poll()
    poll.register(sock, 0)  # only that it is closed
    poll.poll()
    time.sleep(2 * _LEAVE)
    os._exit(1)


def _told_of(error: OrtetError) -> dict[str, Any]:
    return {**error.as_dict(), "details": {}}


def _has(resources: dict[str, float], needs: dict[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= amount for name, amount in needs.items())


def _line(error: BaseException) -> str:
    """What Ray says takes pages: the line that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    line = lines[-1] if "Traceback" in str(error) else lines[0]
    return f"{type(error).__name__}: {line}"[:500]


def _strange(error: Exception) -> Unavailable:
    return Unavailable(
        "no_cluster",
        f"Ray has failed ({_line(error)}): see its logs, and call the swarm again",
    )


def main() -> NoReturn:
    """Connect, see that it can be done, say so, and serve."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_end_with, args=(sock,), daemon=True).start()
    try:
        told, _ = ipc.receive(sock)
        try:
            server = RayServer(sock, told)
        except _Told as error:
            ipc.send(sock, error.found)
            os._exit(1)
        except Exception as error:
            cause = error if isinstance(error, OrtetError) else _strange(error)
            ipc.send(sock, _told_of(cause))
            os._exit(1)
        ipc.send(sock, {"ready": os.getpid()})
    except ipc.Closed:
        os._exit(0)
    server.serve()


if __name__ == "__main__":
    main()
