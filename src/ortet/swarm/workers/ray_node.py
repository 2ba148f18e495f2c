"""Runs one attempt on a node of a Ray cluster, through a fork server there.

The fork server is a process apart from Ray's, so that an attempt can be ended with everything it
has started. Ray transfers only ids. All state is read from and written to the store.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.errors import Invalid, OrtetError, Refused, Unavailable
from ortet.store.context import host_id
from ortet.swarm.attempt import AttemptJob
from ortet.swarm.workers.client import FORK_SERVER, SwarmWorkerClient
from ortet.swarm.workers.placement import ortet_version

Message = dict[str, Any]

_WORKERS: dict[str, SwarmWorkerClient] = {}
"""The fork server of this Ray process, kept for the next attempt.

At most one entry: a Ray process works for one swarm.
"""

_STARTED_TWICE_ERROR = "Ray began it a second time, and what had become of the first was not known"


def check_node(config: Message) -> Message:
    """Check before the start that this node can load the task and reach the store."""
    try:
        _check(config)
        _worker(config)
        _check_store(config)
    except OrtetError as error:
        return _error_fields(error)
    return {}


def run_job(config: Message, job: Message) -> Message:
    """Run an attempt and return fields of AttemptExit. Ending this process ends the attempt."""
    try:
        _check(config)
        worker = _worker(config)
        worker.start(msgspec.convert(job, thread_safe_struct(AttemptJob)))
        ended = worker.wait(config["timeout"])
        if ended is None:
            worker.stop(job["i"])
            worker.wait(None)
            return {"why": "timeout"}
        # If the attempt has recorded its result, the scheduler ignores this answer. Otherwise
        # another process had started the attempt.
        return (
            {"code": ended.code} if ended.code else {"why": "lost", "error": _STARTED_TWICE_ERROR}
        )
    except OrtetError as error:
        close_workers()
        return {"why": "error", "error": f"{_node_name()}: {error}"}


def close_workers() -> None:
    """Close the fork server that is kept."""
    while _WORKERS:
        _WORKERS.popitem()[1].close()


def _worker(config: Message) -> SwarmWorkerClient:
    local_config = _with_local_paths(config)
    key = json.dumps(local_config)
    if key not in _WORKERS:
        close_workers()
        worker = SwarmWorkerClient(FORK_SERVER, local_config)
        try:
            worker.wait_ready()
        except BaseException:
            worker.close()
            raise
        _WORKERS[key] = worker
    return _WORKERS[key]


def _check(config: Message) -> None:
    if config["version"] != ortet_version():
        raise Invalid(
            "other_version",
            f"ortet {ortet_version()} is installed there and {config['version']} here: install "
            "the same",
        )
    if config["host"] and config["host"] != host_id():
        raise store_not_shared(config["root"])


def _check_store(config: Message) -> None:
    module, _, name = config["opener"].partition(":")
    try:
        with getattr(importlib.import_module(module), name)(config["root"], create=False):
            pass
    except OrtetError as error:
        raise Unavailable(
            "no_store_there",
            f"it cannot open the store ({error}): every node needs a way to it, and its passwords",
        ) from error


def _with_local_paths(config: Message) -> Message:
    """Return the configuration with this node's import path before that of the driver."""
    environment = config["around"]
    path = [*sys.path, *(place for place in environment["path"] if place not in sys.path)]
    return {**config, "around": {**environment, "path": path}}


def _error_fields(error: OrtetError) -> Message:
    return {**error.as_dict(), "message": f"{_node_name()}: {error}", "details": {}}


def _node_name() -> str:
    return f"node {os.uname().nodename}"


def store_not_shared(store: str) -> Refused:
    """Return the error for a store in a directory with a cluster of several hosts."""
    return Refused(
        "store_elsewhere",
        f"the store {store} is a directory of one host, and the cluster has others: use a store "
        "that every node reaches, as postgresql://...?bucket=s3://..., or http://HOST:PORT of "
        "`ortet serve`",
    )
