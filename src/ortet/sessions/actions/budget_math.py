"""Arithmetic of budgets: granted, spent and remaining amounts. No clock and no store.

A family has a `FamilyBudget`. Each session of the family, and each family inside its budget, has a
`Reservation`. A reservation draws more than it needs at once, so that siblings rarely conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from ortet.errors import Invalid

Amounts = Mapping[str, float]
SECONDS = "seconds"
"""The counter of wall time. A session with a limit for it spends time automatically."""
SOFT = "soft"
_DRAW_DIVISOR = 8
"""A reservation draws this fraction of the free amount, if that is more than it needs."""
_EPSILON = 1e-9


class FamilyBudget(msgspec.Struct, frozen=True):
    """The budget of a family.

    `granted` is what reservations hold or have spent of limited counters.
    """

    limits: dict[str, float] = {}
    soft: dict[str, float] = {}
    granted: dict[str, float] = {}
    warned: dict[str, float] = {}  # soft limits that were already reported
    outer: str = ""  # the family whose budget contains this one


class Reservation(msgspec.Struct, frozen=True):
    """The amounts that one session may spend without asking, and has spent.

    `spent` never shrinks.
    """

    granted: dict[str, float] = {}
    spent: dict[str, float] = {}
    share: dict[str, float] = {}  # fixed share that the session may not exceed, if one was set

    def unspent(self, name: str) -> float:
        return max(0.0, self.granted.get(name, 0.0) - self.spent.get(name, 0.0))


class BudgetLimits(msgspec.Struct, frozen=True):
    """Requested limits. None removes a limit."""

    hard: dict[str, float | None] = {}
    soft: dict[str, float | None] = {}


def pay(
    family_budget: FamilyBudget, reservation: Reservation, amounts: Amounts
) -> tuple[FamilyBudget, Reservation]:
    """Return both records after a spend.

    A spend has already happened, so it is counted whatever the limits say; see `over_limit`.
    """
    spent = add(reservation.spent, amounts)
    granted, given = dict(reservation.granted), dict(family_budget.granted)
    for name in amounts:
        limit = family_budget.limits.get(name)
        short = spent[name] - granted.get(name, 0.0)
        if limit is not None and short > 0:
            free = limit - given.get(name, 0.0)
            more = max(short, free / _DRAW_DIVISOR)
            granted[name] = granted.get(name, 0.0) + more
            given[name] = given.get(name, 0.0) + more
    return replace(family_budget, granted=given), replace(reservation, granted=granted, spent=spent)


def reserve(family_budget: FamilyBudget, amounts: Amounts) -> tuple[FamilyBudget, Reservation]:
    """Return both records after a new reservation of a fixed share; see `over_limit`."""
    limited = {name: float(x) for name, x in amounts.items() if name in family_budget.limits}
    share = {name: float(x) for name, x in amounts.items()}
    return replace(family_budget, granted=add(family_budget.granted, limited)), Reservation(
        limited, {}, share
    )


def over_share(reservation: Reservation) -> list[str]:
    """Return the counters of which a reservation has spent more than its share."""
    return [
        name
        for name, most in reservation.share.items()
        if reservation.spent.get(name, 0.0) > most + _tolerance(most)
    ]


def exhausted_shares(reservation: Reservation) -> list[str]:
    """Return the counters whose share is used up."""
    return [
        name
        for name, most in reservation.share.items()
        if reservation.spent.get(name, 0.0) >= most - _tolerance(most)
    ]


def return_unspent(
    family_budget: FamilyBudget, reservation: Reservation
) -> tuple[FamilyBudget, Reservation]:
    """Return both records after the reservation gives back all unspent amounts."""
    given = dict(family_budget.granted)
    for name in reservation.granted:
        given[name] = max(0.0, given.get(name, 0.0) - reservation.unspent(name))
    kept = {
        name: min(held, reservation.spent.get(name, 0.0))
        for name, held in reservation.granted.items()
    }
    return replace(family_budget, granted=given), replace(reservation, granted=kept)


def over_limit(before: FamilyBudget, after: FamilyBudget) -> list[str]:
    """Return the counters whose limit a payment exceeded."""
    return [
        name
        for name, limit in after.limits.items()
        if after.granted.get(name, 0.0) > limit + _tolerance(limit)
        and after.granted.get(name, 0.0) != before.granted.get(name, 0.0)
    ]


def exhausted_counters(family_budget: FamilyBudget, reservation: Reservation) -> list[str]:
    """Return the counters of which this reservation can get no more."""
    return [
        name
        for name, limit in family_budget.limits.items()
        if reservation.unspent(name) + max(0.0, limit - family_budget.granted.get(name, 0.0))
        <= _tolerance(limit)
    ]


def total(reservations: Iterable[Reservation]) -> dict[str, float]:
    found: dict[str, float] = {}
    for purse in reservations:
        found = add(found, purse.spent)
    return found


def remaining(family_budget: FamilyBudget, spent: Amounts) -> dict[str, float]:
    """Return the remaining amount of each limited counter, 0 if it is exceeded."""
    return {
        name: max(0.0, limit - spent.get(name, 0.0)) for name, limit in family_budget.limits.items()
    }


def to_warn(family_budget: FamilyBudget, spent: Amounts) -> dict[str, float]:
    """Return the soft limits that are reached and not reported yet."""
    return {
        name: limit
        for name, limit in family_budget.soft.items()
        if spent.get(name, 0.0) >= limit and family_budget.warned.get(name) != limit
    }


def relimit(
    family_budget: FamilyBudget, reservations: Mapping[str, Reservation], new_limits: BudgetLimits
) -> FamilyBudget:
    """Return the family budget under new limits.

    All reservations are reset: the caller must apply `reset_grants` to each of them.
    """
    limits = _merge_limits(family_budget.limits, new_limits.hard)
    spent = total(reservations.values())
    return replace(
        family_budget,
        limits=limits,
        soft=_merge_limits(family_budget.soft, new_limits.soft),
        granted={name: spent.get(name, 0.0) for name in limits},
    )


def reset_grants(family_budget: FamilyBudget, reservation: Reservation) -> Reservation:
    """Return a reservation after `relimit`: granted exactly what it has spent."""
    return replace(
        reservation,
        granted={name: reservation.spent.get(name, 0.0) for name in family_budget.limits},
    )


def add(one: Amounts, other: Amounts) -> dict[str, float]:
    found = dict(one)
    for name, amount in other.items():
        found[name] = found.get(name, 0.0) + float(amount)
    return found


def parse_limits(budget: Mapping[str, Any]) -> BudgetLimits:
    """Parse limits such as {"usd": 5.0, "soft": {"usd": 4.0}}. None removes a limit.

    Raises:
        Invalid: "bad_budget" for any other shape.
    """
    hard = {name: limit for name, limit in budget.items() if name != SOFT}
    soft = budget.get(SOFT) or {}
    if not isinstance(soft, Mapping):
        raise Invalid("bad_budget", f"soft={soft!r}: give the soft limits as {{'usd': 4.0}}")
    return BudgetLimits(_numbers(hard), _numbers(soft))


def budget_event_data(limits: BudgetLimits) -> dict[str, Any]:
    """Return the data of a "budget" event."""
    return {"limits": _merge_limits({}, limits.hard), "soft": _merge_limits({}, limits.soft)}


def check_amounts(amounts: Mapping[str, Any]) -> dict[str, float]:
    for name, amount in amounts.items():
        _check_counter(name, "bad_amount")
        if not _is_amount(amount):
            raise Invalid("bad_amount", f"{name}={amount!r}: give a number from 0")
    return dict(amounts)


def _numbers(limits: Mapping[Any, Any]) -> dict[str, float | None]:
    for name, limit in limits.items():
        _check_counter(name, "bad_budget")
        if not (limit is None or _is_amount(limit)):
            raise Invalid("bad_budget", f"budget {name}={limit!r}: give a number from 0")
    return {name: None if limit is None else float(limit) for name, limit in limits.items()}


def _check_counter(name: Any, kind: str) -> None:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise Invalid(kind, f"{name!r} is no name of a counter: give one such as usd or tokens")


def _is_amount(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value < float("inf")


def _merge_limits(old: Amounts, new_limits: Mapping[str, float | None]) -> dict[str, float]:
    merged = {**old, **new_limits}
    return {name: limit for name, limit in merged.items() if limit is not None}


def _tolerance(limit: float) -> float:
    """Return the rounding tolerance: sums of floats are not exact."""
    return _EPSILON * max(1.0, limit)
