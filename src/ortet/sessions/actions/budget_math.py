"""The arithmetic of a budget: what is granted, spent and left. No clock and no store.

A family has an account; each session of it has a purse, and so has each family that works for it.
A purse draws more than it needs at once, so that forks do not wait for each other at every spend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from ortet.errors import Invalid

Amounts = Mapping[str, float]
SECONDS = "seconds"
"""The counter of wall time, which a session that has a limit for it spends by itself."""
SOFT = "soft"
_DRAW_DIVISOR = 8
"""A purse that draws gets this part of what nobody holds, if that is more than it needs."""
_EPSILON = 1e-9


class FamilyBudget(msgspec.Struct, frozen=True):
    """A family's budget. `granted` is what purses hold or have spent, of counters with a limit."""

    limits: dict[str, float] = {}
    soft: dict[str, float] = {}
    granted: dict[str, float] = {}
    warned: dict[str, float] = {}  # the soft limits that were told
    outer: str = ""  # the family inside whose budget this one lies


class Reservation(msgspec.Struct, frozen=True):
    """What one session may spend without asking, and has spent. `spent` never shrinks."""

    granted: dict[str, float] = {}
    spent: dict[str, float] = {}
    share: dict[str, float] = {}  # what it was given to do with, where its giver has said so

    def unspent(self, name: str) -> float:
        return max(0.0, self.granted.get(name, 0.0) - self.spent.get(name, 0.0))


class BudgetLimits(msgspec.Struct, frozen=True):
    """What a caller asks for; None takes a limit away."""

    hard: dict[str, float | None] = {}
    soft: dict[str, float | None] = {}


def pay(
    family_budget: FamilyBudget, reservation: Reservation, amounts: Amounts
) -> tuple[FamilyBudget, Reservation]:
    """Both after a spend. It has happened, so it is counted whatever the limits say: see `over`."""
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
    """Both when a new purse holds these amounts, and is to do with them; see `over`."""
    limited = {name: float(x) for name, x in amounts.items() if name in family_budget.limits}
    share = {name: float(x) for name, x in amounts.items()}
    return replace(family_budget, granted=add(family_budget.granted, limited)), Reservation(
        limited, {}, share
    )


def over_share(reservation: Reservation) -> list[str]:
    """The counters of which a purse has spent more than its share."""
    return [
        name
        for name, most in reservation.share.items()
        if reservation.spent.get(name, 0.0) > most + _tolerance(most)
    ]


def exhausted_shares(reservation: Reservation) -> list[str]:
    """The counters of whose share nothing is left."""
    return [
        name
        for name, most in reservation.share.items()
        if reservation.spent.get(name, 0.0) >= most - _tolerance(most)
    ]


def return_unspent(
    family_budget: FamilyBudget, reservation: Reservation
) -> tuple[FamilyBudget, Reservation]:
    """Both when the purse keeps nothing that it has not spent."""
    given = dict(family_budget.granted)
    for name in reservation.granted:
        given[name] = max(0.0, given.get(name, 0.0) - reservation.unspent(name))
    kept = {
        name: min(held, reservation.spent.get(name, 0.0))
        for name, held in reservation.granted.items()
    }
    return replace(family_budget, granted=given), replace(reservation, granted=kept)


def over_limit(before: FamilyBudget, after: FamilyBudget) -> list[str]:
    """The counters of which a payment took more than there was."""
    return [
        name
        for name, limit in after.limits.items()
        if after.granted.get(name, 0.0) > limit + _tolerance(limit)
        and after.granted.get(name, 0.0) != before.granted.get(name, 0.0)
    ]


def exhausted_counters(family_budget: FamilyBudget, reservation: Reservation) -> list[str]:
    """The counters of which this purse can get no more."""
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
    """Of each counter that has a limit, 0 when it is overrun."""
    return {
        name: max(0.0, limit - spent.get(name, 0.0)) for name, limit in family_budget.limits.items()
    }


def to_warn(family_budget: FamilyBudget, spent: Amounts) -> dict[str, float]:
    """The soft limits that are reached and were not told yet."""
    return {
        name: limit
        for name, limit in family_budget.soft.items()
        if spent.get(name, 0.0) >= limit and family_budget.warned.get(name) != limit
    }


def relimit(
    family_budget: FamilyBudget, reservations: Mapping[str, Reservation], new_limits: BudgetLimits
) -> FamilyBudget:
    """The account under other limits. Every reservation is called in: give purses their `spent`."""
    limits = _merge_limits(family_budget.limits, new_limits.hard)
    spent = total(reservations.values())
    return replace(
        family_budget,
        limits=limits,
        soft=_merge_limits(family_budget.soft, new_limits.soft),
        granted={name: spent.get(name, 0.0) for name in limits},
    )


def reset_grants(family_budget: FamilyBudget, reservation: Reservation) -> Reservation:
    """A purse after `relimit`."""
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
    """{"usd": 5.0, "soft": {"usd": 4.0}} checked; None takes a limit away."""
    hard = {name: limit for name, limit in budget.items() if name != SOFT}
    soft = budget.get(SOFT) or {}
    if not isinstance(soft, Mapping):
        raise Invalid("bad_budget", f"soft={soft!r}: give the soft limits as {{'usd': 4.0}}")
    return BudgetLimits(_numbers(hard), _numbers(soft))


def budget_event_data(limits: BudgetLimits) -> dict[str, Any]:
    """The data of a "budget" event."""
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
    """Sums of money are not exact: less than this is nothing."""
    return _EPSILON * max(1.0, limit)
