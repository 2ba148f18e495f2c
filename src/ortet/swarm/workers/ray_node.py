"""What a node of a Ray cluster does: one attempt, in a process apart from Ray's, so that it can be
ended with all it has started. Ray moves ids; state comes from the store and goes back into it."""

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
"""What starts attempts here, for the next one: a process of Ray works for one swarm, and has no
other place for it. At most one."""

_STARTED_TWICE_ERROR = "Ray began it a second time, and what had become of the first was not known"


def check_node(config: Message) -> Message:
    """Before anything is begun: whether a node can load the task and reach the store."""
    try:
        _check(config)
        _worker(config)
        _check_store(config)
    except OrtetError as error:
        return _error_fields(error)
    return {}


def run_job(config: Message, job: Message) -> Message:
    """Fields of Ended. Whoever ends this process ends the attempt."""
    try:
        _check(config)
        crew = _worker(config)
        crew.start(msgspec.convert(job, thread_safe_struct(AttemptJob)))
        ended = crew.wait(config["timeout"])
        if ended is None:
            crew.stop(job["i"])
            crew.wait(None)
            return {"why": "timeout"}
        # an attempt that has said how it went is known by that: else another had begun it
        return (
            {"code": ended.code} if ended.code else {"why": "lost", "error": _STARTED_TWICE_ERROR}
        )
    except OrtetError as error:
        close_workers()
        return {"why": "error", "error": f"{_node_name()}: {error}"}


def close_workers() -> None:
    """End what is kept."""
    while _WORKERS:
        _WORKERS.popitem()[1].close()


def _worker(config: Message) -> SwarmWorkerClient:
    said = _with_local_paths(config)
    key = json.dumps(said)
    if key not in _WORKERS:
        close_workers()
        crew = SwarmWorkerClient(FORK_SERVER, said)
        try:
            crew.wait_ready()
        except BaseException:
            crew.close()
            raise
        _WORKERS[key] = crew
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
    """What is installed here comes first; what else the driver can import may lie here, too."""
    around = config["around"]
    path = [*sys.path, *(place for place in around["path"] if place not in sys.path)]
    return {**config, "around": {**around, "path": path}}


def _error_fields(error: OrtetError) -> Message:
    return {**error.as_dict(), "message": f"{_node_name()}: {error}", "details": {}}


def _node_name() -> str:
    return f"node {os.uname().nodename}"


def store_not_shared(store: str) -> Refused:
    """A store in a directory, and a cluster of several hosts."""
    return Refused(
        "store_elsewhere",
        f"the store {store} is a directory of one host, and the cluster has others: use a store "
        "that every node reaches, as postgresql://...?bucket=s3://..., or http://HOST:PORT of "
        "`ortet serve`",
    )
