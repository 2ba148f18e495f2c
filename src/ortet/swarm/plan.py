"""What a swarm is to do, checked before anything is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ortet._util.validation import CALL, FLAG, NUMBER, TEXT, TIMES, may_be, must_be
from ortet.errors import Invalid
from ortet.sessions.actions.budget_math import check_amounts
from ortet.sessions.swarm_api import Halt, Interrupted, Losers, SwarmResult, Watcher, Wish
from ortet.sessions.table import check_session
from ortet.swarm.task_transport import Work, work_of
from ortet.swarm.workers.placement import Cluster, place_of

_MERGE = "merge"


class Keep(msgspec.Struct, frozen=True):
    """What becomes of the best, and how many that are; -1: all that have a score."""

    how: Literal["adopt", "leave", "merge"] = "adopt"
    most: int = 1


class Terms(msgspec.Struct, frozen=True):
    """What stays the same when a swarm goes on after its process was killed."""

    n: int
    keep: Keep
    task: str  # in words
    score: str
    budget: dict[str, float] = {}
    harvest: bool = False
    losers: Losers = "drop"


class Plan(msgspec.Struct, frozen=True):
    """A wish that can be fulfilled. `task` is None when only a name was given."""

    terms: Terms
    name: str
    task: Work | None
    score: Work | None
    parallel: int
    timeout: float | None
    stop_when: Callable[[SwarmResult], bool] | None
    interrupted: Interrupted
    progress: Watcher | None
    halt: Halt | None = None
    on: Cluster | None = None


def plan_of(wish: Wish) -> Plan:
    """Invalid, in the words of the parameter, when something cannot be done as asked."""
    must_be(TIMES, n=wish.n, parallel=wish.parallel)
    must_be(FLAG, harvest=wish.harvest)
    may_be(NUMBER, timeout=wish.timeout)
    may_be(CALL, progress=wish.progress)
    if wish.losers not in ("drop", "keep"):
        raise Invalid("bad_value", f"losers={wish.losers!r}: give 'drop' or 'keep'")
    if wish.interrupted not in ("again", "count"):
        raise Invalid("bad_value", f"interrupted={wish.interrupted!r}: give 'again' or 'count'")
    if wish.halt is not None and not isinstance(wish.halt, Halt):
        raise Invalid("bad_value", f"halt={wish.halt!r}: give a Halt, or leave it out")
    if wish.task is None and wish.name is None:
        raise Invalid(
            "bad_task", "give a task, a function or a command, or the name of a swarm to go on with"
        )
    on = place_of(wish.on, wish.needs)
    far = on is not None
    task = None if wish.task is None else work_of(wish.task, "task", far=far)
    score = None if wish.score is None else work_of(wish.score, "score", far=far)
    return Plan(
        terms=Terms(
            n=wish.n,
            keep=_keep(wish.keep),
            task=task.label if task else "",
            score=score.label if score else "",
            budget=_budget(wish.budget),
            harvest=wish.harvest,
            losers=wish.losers,
        ),
        name="" if wish.name is None else check_swarm(wish.name),
        task=task,
        score=score,
        parallel=min(wish.parallel, wish.n),
        timeout=wish.timeout,
        stop_when=_stop(wish.stop_when),
        interrupted=wish.interrupted,
        progress=wish.progress,
        halt=wish.halt,
        on=on,
    )


def check_swarm(name: Any) -> str:
    """A name that can be a part of the names of its forks."""
    must_be(TEXT, name=name)
    if "/" in name or name.isdigit() or len(name) > 60:
        raise Invalid(
            "bad_name",
            f"{name[:100]!r} cannot name a swarm: use up to 60 letters, digits and . _ -, not "
            "digits alone",
        )
    return check_session(name)


def _keep(asked: Any) -> Keep:
    if isinstance(asked, str):
        word, _, most = asked.partition(":")
        if word == _MERGE and (not most or (most.isdecimal() and int(most))):
            return Keep("merge", int(most) if most else -1)
    elif isinstance(asked, int) and not isinstance(asked, bool) and asked >= 0:
        return Keep("adopt" if asked == 1 else "leave", asked)
    raise Invalid("bad_keep", f"keep={asked!r}: give 0, 1, a greater number, 'merge' or 'merge:2'")


def _budget(asked: Any) -> dict[str, float]:
    if asked is None:
        return {}
    if not isinstance(asked, Mapping):
        raise Invalid("bad_budget", f"budget={asked!r}: give a dict such as {{'usd': 0.5}}")
    return {name: float(amount) for name, amount in check_amounts(asked).items()}


def _stop(asked: Any) -> Callable[[SwarmResult], bool] | None:
    if asked is None:
        return None
    if callable(asked):
        return lambda found: bool(asked(found))
    if isinstance(asked, bool) or not isinstance(asked, int | float) or math.isnan(asked):
        raise Invalid("bad_value", f"stop_when={asked!r}: give a score or a function")
    return lambda found: found.best is not None and (found.best.score or 0.0) >= asked


def differences(one: Terms, other: Terms) -> Sequence[str]:
    """The parameters in which two differ."""
    fields = Terms.__struct_fields__
    return [field for field in fields if getattr(one, field) != getattr(other, field)]
