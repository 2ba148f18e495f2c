"""What a node of a Ray cluster does: one attempt, in a process apart from Ray's, so that it can be
ended with all it has started. Ray moves ids; state comes from the store and goes back into it."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

import msgspec

from ortet._util.structs import known
from ortet.errors import Invalid, OrtetError, Refused, Unavailable
from ortet.store.context import host_id
from ortet.swarm.attempt import Job
from ortet.swarm.workers.client import HERE, Crew
from ortet.swarm.workers.placement import release

Told = dict[str, Any]

_KEPT: dict[str, Crew] = {}
"""What starts attempts here, for the next one: a process of Ray works for one swarm, and has no
other place for it. At most one."""

_TWICE = "Ray began it a second time, and what had become of the first was not known"


def look(told: Told) -> Told:
    """Before anything is begun: whether a node can load the task and reach the store."""
    try:
        _check(told)
        _crew(told)
        _open(told)
    except OrtetError as error:
        return _refusal(error)
    return {}


def perform(told: Told, job: Told) -> Told:
    """Fields of Ended. Whoever ends this process ends the attempt."""
    try:
        _check(told)
        crew = _crew(told)
        crew.start(msgspec.convert(job, known(Job)))
        ended = crew.wait(told["timeout"])
        if ended is None:
            crew.stop(job["i"])
            crew.wait(None)
            return {"why": "timeout"}
        # an attempt that has said how it went is known by that: else another had begun it
        return {"code": ended.code} if ended.code else {"why": "lost", "error": _TWICE}
    except OrtetError as error:
        leave()
        return {"why": "error", "error": f"{_here()}: {error}"}


def leave() -> None:
    """End what is kept."""
    while _KEPT:
        _KEPT.popitem()[1].close()


def _crew(told: Told) -> Crew:
    said = _at_home(told)
    key = json.dumps(said)
    if key not in _KEPT:
        leave()
        crew = Crew(HERE, said)
        try:
            crew.ready()
        except BaseException:
            crew.close()
            raise
        _KEPT[key] = crew
    return _KEPT[key]


def _check(told: Told) -> None:
    if told["version"] != release():
        raise Invalid(
            "other_version",
            f"ortet {release()} is installed there and {told['version']} here: install the same",
        )
    if told["host"] and told["host"] != host_id():
        raise only_here(told["root"])


def _open(told: Told) -> None:
    module, _, name = told["opener"].partition(":")
    try:
        with getattr(importlib.import_module(module), name)(told["root"], create=False):
            pass
    except OrtetError as error:
        raise Unavailable(
            "no_store_there",
            f"it cannot open the store ({error}): every node needs a way to it, and its passwords",
        ) from error


def _at_home(told: Told) -> Told:
    """What is installed here comes first; what else the driver can import may lie here, too."""
    around = told["around"]
    path = [*sys.path, *(place for place in around["path"] if place not in sys.path)]
    return {**told, "around": {**around, "path": path}}


def _refusal(error: OrtetError) -> Told:
    return {**error.as_dict(), "message": f"{_here()}: {error}", "details": {}}


def _here() -> str:
    return f"node {os.uname().nodename}"


def only_here(store: str) -> Refused:
    """A store in a directory, and a cluster of several hosts."""
    return Refused(
        "store_elsewhere",
        f"the store {store} is a directory of one host, and the cluster has others: use a store "
        "that every node reaches, as postgresql://...?bucket=s3://..., or http://HOST:PORT of "
        "`ortet serve`",
    )
