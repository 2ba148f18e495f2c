"""The process that submits attempts to a Ray cluster; see `client.RAY_SERVER`.

It is a process of its own, so that Ray's threads, signals and logs do not affect the user's
process. Ray never retries a task. The scheduler decides if a lost attempt is retried, and first
invalidates the row version of the old try.
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

from ortet._util.structs import thread_safe_struct
from ortet.errors import OrtetError, Refused, Unavailable
from ortet.machines.standalone import ipc
from ortet.swarm.workers import ray_node
from ortet.swarm.workers.client import cluster_gone
from ortet.swarm.workers.placement import RAY_CLIENT_SCHEME, RayClusterSpec

_SHUTDOWN_SECONDS = 10.0
"""Seconds for disconnecting from a cluster that may be gone."""
_CONNECT_SECONDS, _NO_ANSWER_SECONDS, _REFUSED_SECONDS = 120.0, 15.0, 2.0
"""Time limits for connecting to a cluster, in seconds.

The first applies in general. The second applies if the address does not answer; Ray itself would
retry for a quarter of an hour. The third applies if the host refuses the connection.
"""
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "GRPC_PROXY", "HTTPS_PROXY", "HTTP_PROXY")
"""Variables that may let gRPC reach an address that this host cannot reach directly."""
_HEALTH_CHECK_SECONDS, _HEALTH_TIMEOUT_SECONDS = 10.0, 120.0
"""The interval of health checks of a remote cluster, and the time limit for an answer."""
_DISCONNECT_POLL_SECONDS = 0.5
"""The interval of checks if Ray has noticed a lost connection."""
_NODE_CHECK_SECONDS = 120.0
"""Seconds for a node to load the task and open the store."""
_INSTALL_HINT = "install the same ortet[ray] on every node"


class RayServer:
    """Submits each attempt to a node with the required resources, and reports how it ended."""

    def __init__(self, sock: socket.socket, config: dict[str, Any]) -> None:
        self._sock = sock
        self._ray: Any = import_module("ray")
        self._cluster = msgspec.convert(config["cluster"], thread_safe_struct(RayClusterSpec))
        self._config = config
        self._refs: dict[int, Any] = {}
        self._stopped: set[int] = set()
        self._finished: deque[tuple[int, Any]] = deque()
        self._wakeup_read_fd, self._wakeup_write_fd = os.pipe()
        self._connect()
        self._check()
        self._run_job = self._ray.remote(ray_node.run_job)
        self._is_shutting_down = False
        if self._cluster.address.startswith(RAY_CLIENT_SCHEME):
            threading.Thread(target=self._watch_cluster, daemon=True).start()

    def serve(self) -> NoReturn:
        """Handle requests until the driver or the cluster is gone, then exit."""
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._sock, selectors.EVENT_READ)
            waiting.register(self._wakeup_read_fd, selectors.EVENT_READ)
            try:
                while True:
                    for key, _ in waiting.select():
                        if key.fileobj is self._sock:
                            self._handle_message()
                        else:
                            os.read(self._wakeup_read_fd, 1)
                            self._send_exit(*self._finished.popleft())
            except ipc.ConnectionClosed:
                pass
            except Exception as error:  # raised by Ray if the cluster is gone
                self._send_cluster_gone(_summarize_error(error))
        self._shut_down()

    def _watch_cluster(self) -> None:
        """In a thread, check that the cluster is reachable.

        A Ray client whose server was killed may wait forever. A process on a node is ended by Ray
        instead.
        """
        while True:
            checked_at = time.monotonic()
            while (
                time.monotonic() < checked_at + _HEALTH_CHECK_SECONDS and self._ray.is_initialized()
            ):
                time.sleep(_DISCONNECT_POLL_SECONDS)
            limit = threading.Timer(
                _HEALTH_TIMEOUT_SECONDS,
                self._exit_cluster_gone,
                [f"no answer within {_HEALTH_TIMEOUT_SECONDS:g} s"],
            )
            limit.daemon = True
            limit.start()
            try:
                self._ray.nodes()
            except Exception as error:
                self._exit_cluster_gone(_summarize_error(error))
            limit.cancel()

    def _exit_cluster_gone(self, why: str) -> None:
        if not self._is_shutting_down:
            self._send_cluster_gone(why)
            os._exit(1)

    def _send_cluster_gone(self, why: str) -> None:
        with suppress(ipc.ConnectionClosed, OSError):
            ipc.send(self._sock, _error_message(cluster_gone(f" ({why})")))

    def _connect(self) -> None:
        where = self._cluster.address
        known = "RAY_ADDRESS, or a Ray of this host" if where == "auto" else where

        def refused(why: str) -> Unavailable:
            return Unavailable(
                "no_cluster",
                f"no Ray cluster answers at {known} ({why}): start one with `ray start --head`, or "
                "give the address of one that runs",
            )

        patience = _connect_timeout(where)

        def give_up() -> NoReturn:
            with suppress(ipc.ConnectionClosed, OSError):
                ipc.send(self._sock, _error_message(refused(f"nobody within {patience:g} s")))
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
            raise refused(_summarize_error(error)) from error
        finally:
            limit.cancel()

    def _check(self) -> None:
        """Check that some node has the required resources and that a node can open the store."""
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        if self._config["host"] and {node["NodeManagerHostname"] for node in nodes} != {
            os.uname().nodename
        }:
            raise ray_node.store_not_shared(self._config["root"])
        needs = self._cluster.node_resources
        if not any(_has_resources(node["Resources"], needs) for node in nodes):
            words = ", ".join(f"{name} {amount:g}" for name, amount in self._cluster.needs.items())
            raise Refused(
                "no_node",
                f"no node of the cluster has what an attempt needs ({words}): give less in needs=, "
                "or add a node that has it",
            )
        check = self._ray.remote(ray_node.check_node).options(num_cpus=0, max_retries=3)
        try:
            problem = self._ray.get(check.remote(self._config), timeout=_NODE_CHECK_SECONDS)
        except self._ray.exceptions.GetTimeoutError as error:
            raise Unavailable(
                "no_node",
                "no node of the cluster has loaded the task and opened the store in "
                f"{_NODE_CHECK_SECONDS:g} s: "
                "`ray status` tells whether nodes live and are free; see that they reach the store",
            ) from error
        except Exception as error:
            raise Unavailable(
                "no_node",
                f"a node of the cluster cannot do it ({_summarize_error(error)}): {_INSTALL_HINT}",
            ) from error
        if problem:
            raise _NodeError(problem)

    def _handle_message(self) -> None:
        message, _ = ipc.receive(self._sock)
        if "stop" in message:
            self._stop(message["stop"])
            return
        job = message["job"]
        i = int(job["i"])
        options = {
            **self._cluster.ray_options,
            "max_retries": 0,
            "name": f"ortet {job['name']} {i}",
            "scheduling_strategy": "SPREAD",
        }
        ref = self._run_job.options(**options).remote(self._config, job)
        self._stopped.discard(i)
        self._refs[i] = ref
        ref.future().add_done_callback(lambda done: self._on_done(i, done))

    def _on_done(self, i: int, done: Any) -> None:
        """Record the end of a task; called in a thread of Ray."""
        self._finished.append((i, done))
        os.write(self._wakeup_write_fd, b".")

    def _stop(self, i: int) -> None:
        if i in self._refs:
            self._stopped.add(i)
            with suppress(Exception):  # it has already ended
                self._ray.cancel(self._refs[i], force=True)

    def _send_exit(self, i: int, done: Any) -> None:
        del self._refs[i]
        error = done.exception()
        if error is None:
            reply = done.result()
        elif i in self._stopped:
            reply = {"code": -9}
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            words = f"a node could not begin it ({_summarize_error(error)}): {_INSTALL_HINT}"
            reply = {"why": "error", "error": words}
        else:
            reply = {"why": "lost", "error": f"its worker was lost ({_summarize_error(error)})"}
        ipc.send(self._sock, {"i": i, **reply})

    def _shut_down(self) -> NoReturn:
        """Stop what still runs, and exit.

        Ray would wait for a lost cluster, so a thread disconnects, with a time limit.
        """
        self._is_shutting_down = True
        disconnecting = threading.Thread(target=self._disconnect, daemon=True)
        disconnecting.start()
        disconnecting.join(_SHUTDOWN_SECONDS)
        os._exit(0)

    def _disconnect(self) -> None:
        for i in list(self._refs):
            self._stop(i)
        with suppress(Exception):
            self._ray.shutdown()


class _NodeError(Exception):
    """An error reported by a node."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(fields["message"])
        self.fields = fields


def _connect_timeout(address: str) -> float:
    """Return the time limit in seconds for Ray to connect to a cluster.

    A listener at the address is only a hint, because Ray may have another way to it.
    """
    named = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    parts = urlsplit(named if "://" in named else f"//{named}")
    try:
        if not parts.hostname or not parts.port:
            return _CONNECT_SECONDS  # Ray reports a malformed address
        with socket.create_connection((parts.hostname, parts.port), timeout=_NO_ANSWER_SECONDS):
            return _CONNECT_SECONDS
    except ConnectionRefusedError:
        return (
            _NO_ANSWER_SECONDS
            if any(os.environ.get(name) for name in _PROXIES)
            else _REFUSED_SECONDS
        )
    except (OSError, ValueError):
        return _NO_ANSWER_SECONDS


def _exit_when_closed(sock: socket.socket) -> None:
    """End the process if the client is gone and Ray blocks the normal exit."""
    poll = select.poll()
    poll.register(sock, 0)  # wait only for the socket to be closed
    poll.poll()
    time.sleep(2 * _SHUTDOWN_SECONDS)
    os._exit(1)


def _error_message(error: OrtetError) -> dict[str, Any]:
    return {**error.as_dict(), "details": {}}


def _has_resources(resources: dict[str, float], needs: dict[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= amount for name, amount in needs.items())


def _summarize_error(error: BaseException) -> str:
    """Return the most informative line of a Ray error, whose text takes pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    line = lines[-1] if "Traceback" in str(error) else lines[0]
    return f"{type(error).__name__}: {line}"[:500]


def _ray_failed(error: Exception) -> Unavailable:
    return Unavailable(
        "no_cluster",
        f"Ray has failed ({_summarize_error(error)}): see its logs, and call the swarm again",
    )


def main() -> NoReturn:
    """Connect to the cluster, check it, report that it is ready, and serve."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_exit_when_closed, args=(sock,), daemon=True).start()
    try:
        config, _ = ipc.receive(sock)
        try:
            server = RayServer(sock, config)
        except _NodeError as error:
            ipc.send(sock, error.fields)
            os._exit(1)
        except Exception as error:
            cause = error if isinstance(error, OrtetError) else _ray_failed(error)
            ipc.send(sock, _error_message(cause))
            os._exit(1)
        ipc.send(sock, {"ready": os.getpid()})
    except ipc.ConnectionClosed:
        os._exit(0)
    server.serve()


if __name__ == "__main__":
    main()
