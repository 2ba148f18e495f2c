"""Checks a swarm request and turns it into a plan, before anything is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ortet._util.validation import CALLABLE, FLAG, NUMBER, POSITIVE_COUNT, TEXT, optional, require
from ortet.errors import Invalid
from ortet.sessions.actions.budget_math import check_amounts
from ortet.sessions.swarm_api import (
    Interrupted,
    Losers,
    ProgressCallback,
    SwarmRequest,
    SwarmResult,
    SwarmStopSignal,
)
from ortet.sessions.table import check_session
from ortet.swarm.task_transport import TaskPayload, pack_task
from ortet.swarm.workers.placement import RayClusterSpec, parse_cluster

_MERGE = "merge"


class KeepRule(msgspec.Struct, frozen=True):
    """How many of the best attempts are kept (-1: all that have a score), and how."""

    how: Literal["adopt", "leave", "merge"] = "adopt"
    most: int = 1


class SwarmTerms(msgspec.Struct, frozen=True):
    """The parameters that must not change when a swarm continues after a crash."""

    n: int
    keep: KeepRule
    task: str  # as a label
    score: str
    budget: dict[str, float] = {}
    harvest: bool = False
    losers: Losers = "drop"


class SwarmPlan(msgspec.Struct, frozen=True):
    """A checked request. `task` is None if only the name of a swarm was given."""

    terms: SwarmTerms
    name: str
    task: TaskPayload | None
    score: TaskPayload | None
    parallel: int
    timeout: float | None
    stop_when: Callable[[SwarmResult], bool] | None
    interrupted: Interrupted
    progress: ProgressCallback | None
    halt: SwarmStopSignal | None = None
    on: RayClusterSpec | None = None


def make_plan(request: SwarmRequest) -> SwarmPlan:
    """Check a request and return its plan.

    Raise Invalid, naming the parameter, if it is not valid.
    """
    require(POSITIVE_COUNT, n=request.n, parallel=request.parallel)
    require(FLAG, harvest=request.harvest)
    optional(NUMBER, timeout=request.timeout)
    optional(CALLABLE, progress=request.progress)
    if request.losers not in ("drop", "keep"):
        raise Invalid("bad_value", f"losers={request.losers!r}: give 'drop' or 'keep'")
    if request.interrupted not in ("again", "count"):
        raise Invalid("bad_value", f"interrupted={request.interrupted!r}: give 'again' or 'count'")
    if request.halt is not None and not isinstance(request.halt, SwarmStopSignal):
        raise Invalid("bad_value", f"halt={request.halt!r}: give a Halt, or leave it out")
    if request.task is None and request.name is None:
        raise Invalid(
            "bad_task", "give a task, a function or a command, or the name of a swarm to go on with"
        )
    on = parse_cluster(request.on, request.needs)
    far = on is not None
    task = None if request.task is None else pack_task(request.task, "task", is_remote=far)
    score = None if request.score is None else pack_task(request.score, "score", is_remote=far)
    return SwarmPlan(
        terms=SwarmTerms(
            n=request.n,
            keep=_parse_keep(request.keep),
            task=task.label if task else "",
            score=score.label if score else "",
            budget=_parse_budget(request.budget),
            harvest=request.harvest,
            losers=request.losers,
        ),
        name="" if request.name is None else check_swarm_name(request.name),
        task=task,
        score=score,
        parallel=min(request.parallel, request.n),
        timeout=request.timeout,
        stop_when=_parse_stop(request.stop_when),
        interrupted=request.interrupted,
        progress=request.progress,
        halt=request.halt,
        on=on,
    )


def check_swarm_name(name: Any) -> str:
    """Return a valid swarm name, which becomes part of the names of its forks."""
    require(TEXT, name=name)
    if "/" in name or name.isdigit() or len(name) > 60:
        raise Invalid(
            "bad_name",
            f"{name[:100]!r} cannot name a swarm: use up to 60 letters, digits and . _ -, not "
            "digits alone",
        )
    return check_session(name)


def _parse_keep(value: Any) -> KeepRule:
    if isinstance(value, str):
        word, _, most = value.partition(":")
        if word == _MERGE and (not most or (most.isdecimal() and int(most))):
            return KeepRule("merge", int(most) if most else -1)
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return KeepRule("adopt" if value == 1 else "leave", value)
    raise Invalid("bad_keep", f"keep={value!r}: give 0, 1, a greater number, 'merge' or 'merge:2'")


def _parse_budget(value: Any) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Invalid("bad_budget", f"budget={value!r}: give a dict such as {{'usd': 0.5}}")
    return {name: float(amount) for name, amount in check_amounts(value).items()}


def _parse_stop(value: Any) -> Callable[[SwarmResult], bool] | None:
    if value is None:
        return None
    if callable(value):
        return lambda found: bool(value(found))
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise Invalid("bad_value", f"stop_when={value!r}: give a score or a function")
    return lambda found: found.best is not None and (found.best.score or 0.0) >= value


def differing_fields(first: SwarmTerms, second: SwarmTerms) -> Sequence[str]:
    """Return the names of the parameters in which two terms differ."""
    fields = SwarmTerms.__struct_fields__
    return [field for field in fields if getattr(first, field) != getattr(second, field)]
