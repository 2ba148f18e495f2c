"""The budget of a session: its reservation in the budget of its family, and in outer families.

A family may work inside the budget of another family; each is one `BudgetLevel`. Budget rows change
in the same transaction that appends the event. A conflict with a sibling session is retried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from ortet._util.codec import decode, encode
from ortet._util.failpoints import failpoint
from ortet.backends.base import Catalog, CatalogRow, RowChange
from ortet.errors import Conflict, Refused
from ortet.journal.events import Draft, Event
from ortet.sessions.actions import budget_math
from ortet.sessions.actions.bill import bill_row_change
from ortet.sessions.actions.budget_math import (
    SECONDS,
    Amounts,
    BudgetLimits,
    FamilyBudget,
    Reservation,
)
from ortet.sessions.table import SessionRow
from ortet.sessions.writing.event_writer import EventWriter
from ortet.store.lease import is_owner_dead

if TYPE_CHECKING:
    from ortet.store.context import StoreContext

T = TypeVar("T")
Shortfalls = Sequence[tuple["BudgetLevel", Sequence[str]]]
"""The levels that are exhausted, each with its counters."""

_FAMILY_BUDGET_KEY = "account"  # every other key of this row kind is the id of a reservation
_TRIES = 100
"""Number of attempts before a spend gives up on conflicts with siblings."""


class BudgetLevel(msgspec.Struct, frozen=True):
    """One family budget that a spend counts in, with the reservation it is paid from.

    `versions` are those of the two rows as read.
    """

    family: str
    key: str
    account: FamilyBudget
    purse: Reservation
    versions: tuple[int, int]

    def changes(self, old: BudgetLevel) -> list[RowChange]:
        """Return the row changes from `old`, valid only if the rows have not changed since."""
        kind, found = kind_of(self.family), []
        if self.purse != old.purse:
            found.append(RowChange(kind, self.key, encode(self.purse), self.versions[1]))
        if self.account != old.account:
            found.append(
                RowChange(kind, _FAMILY_BUDGET_KEY, encode(self.account), self.versions[0])
            )
        return found


def kind_of(family: str) -> str:
    return f"spend/{family}"


def initial_budget_rows(
    row: SessionRow, limits: BudgetLimits, outer: str, spent: Amounts
) -> list[RowChange]:
    """Return the budget rows of a new session.

    Args:
        outer: the family whose budget contains this one; "" for none.
        spent: the amounts that the session has spent in another store.
    """
    purse = Reservation(spent=dict(spent))
    account = budget_math.relimit(FamilyBudget(outer=outer), {row.id: purse}, limits)
    kind, found = kind_of(row.family), []
    if account != FamilyBudget():
        found.append(RowChange(kind, _FAMILY_BUDGET_KEY, encode(account), expect=0))
    if spent:
        found.append(
            RowChange(kind, row.id, encode(budget_math.reset_grants(account, purse)), expect=0)
        )
    return found


def levels(catalog: Catalog, row: SessionRow) -> list[BudgetLevel]:
    """Return the budget levels: the session's own family first, then the outer families."""
    found: list[BudgetLevel] = []
    family, key = row.family, row.id
    while family and family not in {level.family for level in found}:
        account = catalog.row(kind_of(family), _FAMILY_BUDGET_KEY)
        purse = catalog.row(kind_of(family), key)
        level = BudgetLevel(
            family=family,
            key=key,
            account=decode(FamilyBudget, account.value) if account else FamilyBudget(),
            purse=decode(Reservation, purse.value) if purse else Reservation(),
            versions=(account.version if account else 0, purse.version if purse else 0),
        )
        found.append(level)
        family, key = level.account.outer, family
    return found


def reservation_rows(catalog: Catalog, family: str) -> Iterator[tuple[CatalogRow, Reservation]]:
    after = ""
    while page := catalog.rows(kind_of(family), after):
        for row in page:
            if row.key != _FAMILY_BUDGET_KEY:
                yield row, decode(Reservation, row.value)
        after = page[-1].key


def spent_by(catalog: Catalog, family: str) -> dict[str, float]:
    """Return the amounts that a family, and the families inside its budget, have ever spent."""
    return budget_math.total(purse for _, purse in reservation_rows(catalog, family))


def remaining_for(catalog: Catalog, row: SessionRow) -> dict[str, float]:
    """Return the remaining amount of each limited counter: the least over all levels."""
    found: dict[str, float] = {}
    for level in levels(catalog, row):
        for name, rest in budget_math.remaining(
            level.account, spent_by(catalog, level.family)
        ).items():
            found[name] = min(rest, found.get(name, rest))
        for name, most in level.purse.share.items():
            rest = max(0.0, most - level.purse.spent.get(name, 0.0))
            found[name] = min(rest, found.get(name, rest))
    return found


def reserve_share(catalog: Catalog, row: SessionRow, amounts: Amounts) -> list[RowChange]:
    """Return the row changes that reserve a fixed share of the family's budget for a new session.

    Raises:
        Refused: "budget_spent" if the family has not enough left.
    """
    level = levels(catalog, row)[0]
    account, purse = budget_math.reserve(level.account, amounts)
    if names := budget_math.over_limit(level.account, account):
        limits, granted = level.account.limits, level.account.granted
        free = {name: max(0.0, limits[name] - granted.get(name, 0.0)) for name in names}
        parts = [f"{name} {amounts[name]:g} of {rest:g} left" for name, rest in free.items()]
        raise Refused(
            "budget_spent",
            f"the family's budget cannot give {row.name!r} its share ({'; '.join(parts)}): give "
            "less to each, or raise the limit with s.budget(…)",
            left=free,
            limits=limits,
        )
    return replace(level, account=account, purse=purse).changes(level)


class SessionBudget(Protocol):
    """The budget of one open session: a `Budget`, or in a replay one that spends nothing."""

    def spend(
        self,
        amounts: Amounts,
        *,
        model: str = "",
        drafts: Sequence[Draft] = (),
        extra_rows: Sequence[RowChange] = (),
        at: int = 0,
    ) -> tuple[list[Event], Refused | None]: ...

    def limit(self, limits: BudgetLimits) -> Event: ...

    def refusal_if_spent(self) -> Refused | None: ...

    def remaining(self) -> dict[str, float]: ...

    def count_lost_time(self, alive_until: int) -> None: ...

    def settle(self) -> None: ...

    def count(self) -> None: ...

    def return_unspent(self) -> None: ...


class Budget:
    """Records the spends of one open session.

    A spend has already happened, so it is always recorded. If it exceeds a limit, the session
    pauses.
    """

    def __init__(
        self, store: StoreContext, row: SessionRow, writer: EventWriter, *, host: str
    ) -> None:
        self._store = store
        self._row = row
        self._writer = writer
        self._host = host
        self._counted_until = store.clock.now_ns()  # wall time is counted up to here
        self._may_hold_unspent = (
            True  # False is certain: other sessions never increase this reservation
        )

    def spend(
        self,
        amounts: Amounts,
        *,
        model: str = "",
        drafts: Sequence[Draft] = (),
        extra_rows: Sequence[RowChange] = (),
        at: int = 0,
    ) -> tuple[list[Event], Refused | None]:
        """Record a spend after `drafts`, with `extra_rows`, in one transaction.

        Args:
            amounts: the amount of each counter.
            model: the model that was paid.
            drafts: events to append before the spend event.
            extra_rows: further row changes for the transaction.
            at: the time of the payment for the bill; 0 for now.

        Returns:
            The events, and the refusal that the caller raises after pausing the session, or None.
        """

        self._may_hold_unspent = True

        def attempt() -> tuple[list[Event], Refused | None]:
            before = levels(self._store.catalog, self._row)
            now = self._store.clock.now_ns()
            paid = {**amounts, **self._seconds(before, amounts, now)}
            after, calls, short = self._pay(before, paid)
            data: dict[str, Any] = {"amounts": paid}
            if model:
                data["model"] = model
            warnings, after = self._warn(before, after, paid)
            rows = [c for old, new in zip(before, after, strict=True) for c in new.changes(old)]
            rows += [
                *calls,
                bill_row_change(self._store.catalog, self._row, paid, model, at or now),
                *extra_rows,
            ]
            failpoint("budget.before-spend")
            events = self._writer.add(*drafts, self._draft("spend", data), *warnings, rows=rows)
            self._counted_until = now
            return events, self._refusal(short) if short else None

        return _retry_row_conflict(attempt)

    def limit(self, limits: BudgetLimits) -> Event:
        """Set limits of the family. Limits that are not given stay."""

        def attempt() -> Event:
            catalog, level = self._store.catalog, levels(self._store.catalog, self._row)[0]
            rows = list(reservation_rows(catalog, level.family))
            account = budget_math.relimit(level.account, {row.key: p for row, p in rows}, limits)
            kind = kind_of(level.family)
            changes = [RowChange(kind, _FAMILY_BUDGET_KEY, encode(account), level.versions[0])]
            for row, purse in rows:
                kept = budget_math.reset_grants(account, purse)
                if kept != purse:
                    changes.append(RowChange(kind, row.key, encode(kept), row.version))
            data = {"limits": account.limits, "soft": account.soft}
            return self._writer.add(self._draft("budget", data), rows=changes)[0]

        return _retry_row_conflict(attempt)

    def refusal_if_spent(self) -> Refused | None:
        """Return the refusal if nothing is left to pay an action, otherwise None."""
        found = levels(self._store.catalog, self._row)
        timed = any(SECONDS in level.account.limits for level in found)
        if timed and not self.remaining()[SECONDS]:
            self.spend({})
            found = levels(self._store.catalog, self._row)
        short = [(level, names) for level in found if (names := self._empty(level))]
        return self._refusal(short) if short else None

    def remaining(self) -> dict[str, float]:
        """Return the remaining amount of each counter, with time counted up to now."""
        found = remaining_for(self._store.catalog, self._row)
        if SECONDS in found:
            elapsed = max(0, self._store.clock.now_ns() - self._counted_until) / 1e9
            found[SECONDS] = max(0.0, found[SECONDS] - elapsed)
        return found

    def count_lost_time(self, alive_until: int) -> None:
        """Count the time of a process that was killed.

        The time runs from the last count to the last sign of life: the last event, or
        `alive_until`, when the process last renewed its lease.
        """
        found = levels(self._store.catalog, self._row)
        if not _has_time_limit(found):
            return
        timeline = self._row.timeline
        counted, last = (
            int(timeline[:12], 16) * 10**6,
            alive_until,
        )  # an id starts with its time in ms
        for event in self._writer.event_log.events():
            if event.timeline != timeline:
                continue
            last = max(last, event.time)
            if event.kind == "lifecycle" or SECONDS in event.data.get("amounts", {}):
                counted = event.time
        if last > counted:
            self.spend({SECONDS: (last - counted) / 1e9})

    def settle(self) -> None:
        """Count the time and return unspent amounts, when the session is released."""
        self.count()
        self._may_hold_unspent = (
            True  # a sibling that died may have left something in an outer reservation
        )
        self.return_unspent()

    def count(self) -> None:
        """Count the wall time up to now."""
        found = levels(self._store.catalog, self._row)
        if self._seconds(found, {}, self._store.clock.now_ns()):
            self.spend({})

    def return_unspent(self) -> None:
        """Return reserved and unspent amounts to the family, for siblings."""

        def attempt() -> None:
            before = levels(self._store.catalog, self._row)
            after = [
                self._replace_amounts(old, budget_math.return_unspent(old.account, old.purse))
                for old in before
            ]
            rows = [c for old, new in zip(before, after, strict=True) for c in new.changes(old)]
            if rows:
                self._store.catalog.move([], verb="budget", actor=self._store.author, rows=rows)

        if self._may_hold_unspent:
            _retry_row_conflict(attempt)
            self._may_hold_unspent = False

    # private

    def _pay(
        self, before: Sequence[BudgetLevel], amounts: Amounts
    ) -> tuple[list[BudgetLevel], list[RowChange], Shortfalls]:
        """Return the levels after a payment, the reclaimed reservations and exceeded counters."""
        after: list[BudgetLevel] = []
        calls: list[RowChange] = []
        short: list[tuple[BudgetLevel, Sequence[str]]] = []
        for level in before:
            new = self._replace_amounts(level, budget_math.pay(level.account, level.purse, amounts))
            if budget_math.over_limit(level.account, new.account):
                changes, account = self._reclaim_abandoned(level)
                calls += changes
                new = self._replace_amounts(level, budget_math.pay(account, level.purse, amounts))
                if names := budget_math.over_limit(account, new.account):
                    short.append((new, names))
            if names := budget_math.over_share(new.purse):
                short.append((new, names))
            after.append(new)
        return after, calls, short

    def _empty(self, level: BudgetLevel) -> list[str]:
        if names := budget_math.exhausted_shares(level.purse):
            return names
        if not budget_math.exhausted_counters(level.account, level.purse):
            return []
        _, account = self._reclaim_abandoned(level)
        return budget_math.exhausted_counters(account, level.purse)

    def _reclaim_abandoned(self, level: BudgetLevel) -> tuple[list[RowChange], FamilyBudget]:
        """Return the changes that reclaim amounts held by sessions that no process has open."""
        catalog, account, changes = self._store.catalog, level.account, []
        for row, purse in reservation_rows(catalog, level.family):
            if row.key != level.key and not self._is_open(row.key):
                account, kept = budget_math.return_unspent(account, purse)
                if kept != purse:
                    kind = kind_of(level.family)
                    changes.append(RowChange(kind, row.key, encode(kept), row.version))
        return changes, account

    def _is_open(self, session: str) -> bool:
        lease = self._store.catalog.lease(f"session:{session}")
        if lease is None or lease.expires <= self._store.clock.now_ns():
            return False
        return not is_owner_dead(lease.owner, self._host)

    def _warn(
        self, before: Sequence[BudgetLevel], after: Sequence[BudgetLevel], paid: Amounts
    ) -> tuple[list[Draft], list[BudgetLevel]]:
        """Return a warning event for each soft limit that is newly reached.

        Each limit warns once.
        """
        drafts: list[Draft] = []
        found: list[BudgetLevel] = []
        for old, new in zip(before, after, strict=True):
            account = new.account
            if any(account.warned.get(name) != account.soft.get(name) for name in account.soft):
                spent = budget_math.add(spent_by(self._store.catalog, old.family), paid)
                told = budget_math.to_warn(account, spent)
                for name, limit in told.items():
                    data = {"what": "budget", "name": name, "limit": limit}
                    data["spent"] = spent.get(name, 0.0)  # a limit of 0 is reached at once
                    drafts.append(self._draft("warning", data))
                account = replace(account, warned={**account.warned, **told})
            found.append(replace(new, account=account))
        return drafts, found

    def _seconds(
        self, found: Sequence[BudgetLevel], amounts: Amounts, now: int
    ) -> dict[str, float]:
        """Return the wall time since the last count, if a level has a limit for it."""
        elapsed = max(0, now - self._counted_until) / 1e9
        return (
            {SECONDS: elapsed}
            if _has_time_limit(found) and elapsed and SECONDS not in amounts
            else {}
        )

    def _refusal(self, short: Shortfalls) -> Refused:
        level, names = short[0]
        account, spent = level.account, spent_by(self._store.catalog, level.family)
        parts, raised = [], []
        for name in names:
            if name in level.purse.share and name in budget_math.exhausted_shares(level.purse):
                return self._share_spent(level, name)
            limit, used = account.limits[name], spent.get(name, 0.0)
            part = f"{name} {used:g} of {limit:g}"
            if used < limit:
                part += f", and other sessions hold {limit - used:g} until they pause"
            parts.append(part)
            raised.append(f"{name}=…")
        own = level.family == self._row.family
        whose = f"hub.session({self._row.name!r})" if own else f"the session {level.family}"
        return Refused(
            "budget_spent",
            f"the budget is spent ({'; '.join(parts)}) and session {self._row.name!r} is paused: "
            f"open {whose} and raise the limit with s.budget({', '.join(raised)})",
            left=remaining_for(self._store.catalog, self._row),
            limits=account.limits,
            spent=spent,
            session=self._row.id,
        )

    def _share_spent(self, level: BudgetLevel, name: str) -> Refused:
        most, used = level.purse.share[name], level.purse.spent.get(name, 0.0)
        return Refused(
            "budget_spent",
            f"session {self._row.name!r} has spent its share ({name} {used:g} of {most:g}) and is "
            "paused: give each attempt more with budget=",
            left=remaining_for(self._store.catalog, self._row),
            limits=level.purse.share,
            spent=level.purse.spent,
            session=self._row.id,
        )

    @staticmethod
    def _replace_amounts(level: BudgetLevel, new: tuple[FamilyBudget, Reservation]) -> BudgetLevel:
        return replace(level, account=new[0], purse=new[1])

    def _draft(self, kind: str, data: dict[str, Any]) -> Draft:
        return Draft(kind, data, self._store.author)


def _has_time_limit(found: Sequence[BudgetLevel]) -> bool:
    """Return True if a level has a hard or soft limit for wall time."""
    return any(SECONDS in limits for x in found for limits in (x.account.limits, x.account.soft))


def _retry_row_conflict(attempt: Callable[[], T]) -> T:
    """Run `attempt` again while it fails because a sibling changed a row first."""
    for _ in range(_TRIES - 1):
        try:
            return attempt()
        except Conflict as error:
            if error.kind != "row_moved":
                raise
    return attempt()
