"""The budget of a session: its purse in the family's account, and those of the families it works
for. Rows move in the transaction that appends the event."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from ortet._util.codec import decode, encode
from ortet._util.failpoints import reach
from ortet.backends.base import Catalog, Row, RowChange
from ortet.errors import Conflict, Refused
from ortet.journal.events import Draft, Event
from ortet.sessions.actions import budget_math
from ortet.sessions.actions.bill import charged
from ortet.sessions.actions.budget_math import SECONDS, Account, Amounts, Limits, Purse
from ortet.sessions.table import SessionRow
from ortet.sessions.writing.event_writer import Ledger
from ortet.store.lease import is_dead

if TYPE_CHECKING:
    from ortet.hub.hub import Hub

T = TypeVar("T")
Short = Sequence[tuple["Level", Sequence[str]]]
"""On which levels which counters are used up."""

_ACCOUNT = "account"  # every other key of the kind is an id: a purse
_TRIES = 100
"""How often siblings may be faster before a spend gives up."""


class Level(msgspec.Struct, frozen=True):
    """One account that a spend counts in, and the purse it is paid from; versions as read."""

    family: str
    key: str
    account: Account
    purse: Purse
    versions: tuple[int, int]

    def changes(self, old: Level) -> list[RowChange]:
        """What to write, if nobody else has written since."""
        kind, found = kind_of(self.family), []
        if self.purse != old.purse:
            found.append(RowChange(kind, self.key, encode(self.purse), self.versions[1]))
        if self.account != old.account:
            found.append(RowChange(kind, _ACCOUNT, encode(self.account), self.versions[0]))
        return found


def kind_of(family: str) -> str:
    return f"spend/{family}"


def opened(row: SessionRow, limits: Limits, outer: str, spent: Amounts) -> list[RowChange]:
    """The account of a session that begins, inside the budget of the family `outer` if any, and
    its purse, if it has `spent` something in another store."""
    purse = Purse(spent=dict(spent))
    account = budget_math.relimit(Account(outer=outer), {row.id: purse}, limits)
    kind, found = kind_of(row.family), []
    if account != Account():
        found.append(RowChange(kind, _ACCOUNT, encode(account), expect=0))
    if spent:
        found.append(
            RowChange(kind, row.id, encode(budget_math.called_in(account, purse)), expect=0)
        )
    return found


def levels(catalog: Catalog, row: SessionRow) -> list[Level]:
    """The session's own family first, then those it works for."""
    found: list[Level] = []
    family, key = row.family, row.id
    while family and family not in {level.family for level in found}:
        account = catalog.row(kind_of(family), _ACCOUNT)
        purse = catalog.row(kind_of(family), key)
        level = Level(
            family=family,
            key=key,
            account=decode(Account, account.value) if account else Account(),
            purse=decode(Purse, purse.value) if purse else Purse(),
            versions=(account.version if account else 0, purse.version if purse else 0),
        )
        found.append(level)
        family, key = level.account.outer, family
    return found


def purse_rows(catalog: Catalog, family: str) -> Iterator[tuple[Row, Purse]]:
    after = ""
    while page := catalog.rows(kind_of(family), after):
        for row in page:
            if row.key != _ACCOUNT:
                yield row, decode(Purse, row.value)
        after = page[-1].key


def spent_by(catalog: Catalog, family: str) -> dict[str, float]:
    """All that a family, and those who work for it, ever spent."""
    return budget_math.total(purse for _, purse in purse_rows(catalog, family))


def left_for(catalog: Catalog, row: SessionRow) -> dict[str, float]:
    """Of each counter with a limit: the least of what is left on any level."""
    found: dict[str, float] = {}
    for level in levels(catalog, row):
        for name, rest in budget_math.left(level.account, spent_by(catalog, level.family)).items():
            found[name] = min(rest, found.get(name, rest))
        for name, most in level.purse.share.items():
            rest = max(0.0, most - level.purse.spent.get(name, 0.0))
            found[name] = min(rest, found.get(name, rest))
    return found


def reserved(catalog: Catalog, row: SessionRow, amounts: Amounts) -> list[RowChange]:
    """What gives a new session these amounts of its family's budget, and no more; to be written
    with it. Refused("budget_spent") when so much is not left."""
    level = levels(catalog, row)[0]
    account, purse = budget_math.reserve(level.account, amounts)
    if names := budget_math.over(level.account, account):
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


class Budget:
    """Spends for one open session. It never refuses what has been spent: it says that it was too
    much, and the session stops."""

    def __init__(self, hub: Hub, row: SessionRow, ledger: Ledger, *, host: str) -> None:
        self._hub = hub
        self._row = row
        self._ledger = ledger
        self._host = host
        self._mark = hub.clock.now_ns()  # wall time up to here is counted
        self._holds = True  # perhaps; others only ever lessen what this session has reserved

    def spend(
        self,
        amounts: Amounts,
        *,
        model: str = "",
        drafts: Sequence[Draft] = (),
        beside: Sequence[RowChange] = (),
        at: int = 0,
    ) -> tuple[list[Event], Refused | None]:
        """Record a spend behind `drafts`, with the rows `beside`, in one step; returns the events,
        and the refusal that the caller has to raise once it has paused. It is on the bill of now,
        or of when it was paid, `at`."""

        self._holds = True

        def attempt() -> tuple[list[Event], Refused | None]:
            before = levels(self._hub.catalog, self._row)
            now = self._hub.clock.now_ns()
            paid = {**amounts, **self._seconds(before, amounts, now)}
            after, calls, short = self._pay(before, paid)
            data: dict[str, Any] = {"amounts": paid}
            if model:
                data["model"] = model
            warnings, after = self._warn(before, after, paid)
            rows = [c for old, new in zip(before, after, strict=True) for c in new.changes(old)]
            rows += [*calls, charged(self._hub.catalog, self._row, paid, model, at or now), *beside]
            reach("budget.before-spend")
            events = self._ledger.add(*drafts, self._draft("spend", data), *warnings, rows=rows)
            self._mark = now
            return events, self._refusal(short) if short else None

        return _again(attempt)

    def limit(self, asked: Limits) -> Event:
        """Set limits of the family; the others stay."""

        def attempt() -> Event:
            catalog, level = self._hub.catalog, levels(self._hub.catalog, self._row)[0]
            rows = list(purse_rows(catalog, level.family))
            account = budget_math.relimit(level.account, {row.key: p for row, p in rows}, asked)
            kind = kind_of(level.family)
            changes = [RowChange(kind, _ACCOUNT, encode(account), level.versions[0])]
            for row, purse in rows:
                kept = budget_math.called_in(account, purse)
                if kept != purse:
                    changes.append(RowChange(kind, row.key, encode(kept), row.version))
            data = {"limits": account.limits, "soft": account.soft}
            return self._ledger.add(self._draft("budget", data), rows=changes)[0]

        return _again(attempt)

    def gate(self) -> Refused | None:
        """Before an action: the refusal when nothing is left to pay it from."""
        found = levels(self._hub.catalog, self._row)
        timed = any(SECONDS in level.account.limits for level in found)
        if timed and not self.left()[SECONDS]:
            self.spend({})
            found = levels(self._hub.catalog, self._row)
        short = [(level, names) for level in found if (names := self._empty(level))]
        return self._refusal(short) if short else None

    def left(self) -> dict[str, float]:
        """What is left of each counter; of time, as of now."""
        found = left_for(self._hub.catalog, self._row)
        if SECONDS in found:
            elapsed = max(0, self._hub.clock.now_ns() - self._mark) / 1e9
            found[SECONDS] = max(0.0, found[SECONDS] - elapsed)
        return found

    def make_up(self, alive: int) -> None:
        """Count the time of a process that was killed: from when it was last counted to its last
        sign of life, which is an event, or `alive`, when it last renewed its lease."""
        found = levels(self._hub.catalog, self._row)
        if not _timed(found):
            return
        timeline = self._row.timeline
        counted, last = int(timeline[:12], 16) * 10**6, alive  # an id begins with its time, in ms
        for event in self._ledger.line.events():
            if event.timeline != timeline:
                continue
            last = max(last, event.time)
            if event.kind == "lifecycle" or SECONDS in event.data.get("amounts", {}):
                counted = event.time
        if last > counted:
            self.spend({SECONDS: (last - counted) / 1e9})

    def settle(self) -> None:
        """The session lets go: count its time, and give back what it holds unspent."""
        self.count()
        self._holds = True  # a sibling that died may have left something where both draw on
        self.give_back()

    def count(self) -> None:
        """The wall time up to now."""
        found = levels(self._hub.catalog, self._row)
        if self._seconds(found, {}, self._hub.clock.now_ns()):
            self.spend({})

    def give_back(self) -> None:
        """Let siblings have what this session has reserved and not spent."""

        def attempt() -> None:
            before = levels(self._hub.catalog, self._row)
            after = [
                self._changed(old, budget_math.give_back(old.account, old.purse)) for old in before
            ]
            rows = [c for old, new in zip(before, after, strict=True) for c in new.changes(old)]
            if rows:
                self._hub.catalog.move([], verb="budget", actor=self._hub.author, rows=rows)

        if self._holds:
            _again(attempt)
            self._holds = False

    # inside

    def _pay(
        self, before: Sequence[Level], amounts: Amounts
    ) -> tuple[list[Level], list[RowChange], Short]:
        """The levels after a payment, reservations that were called in, and what was too much."""
        after: list[Level] = []
        calls: list[RowChange] = []
        short: list[tuple[Level, Sequence[str]]] = []
        for level in before:
            new = self._changed(level, budget_math.pay(level.account, level.purse, amounts))
            if budget_math.over(level.account, new.account):
                changes, account = self._call_in(level)
                calls += changes
                new = self._changed(level, budget_math.pay(account, level.purse, amounts))
                if names := budget_math.over(account, new.account):
                    short.append((new, names))
            if names := budget_math.beyond(new.purse):
                short.append((new, names))
            after.append(new)
        return after, calls, short

    def _empty(self, level: Level) -> list[str]:
        if names := budget_math.used_up(level.purse):
            return names
        if not budget_math.empty(level.account, level.purse):
            return []
        _, account = self._call_in(level)
        return budget_math.empty(account, level.purse)

    def _call_in(self, level: Level) -> tuple[list[RowChange], Account]:
        """What sessions hold that nobody has open: their process was killed."""
        catalog, account, changes = self._hub.catalog, level.account, []
        for row, purse in purse_rows(catalog, level.family):
            if row.key != level.key and not self._is_open(row.key):
                account, kept = budget_math.give_back(account, purse)
                if kept != purse:
                    kind = kind_of(level.family)
                    changes.append(RowChange(kind, row.key, encode(kept), row.version))
        return changes, account

    def _is_open(self, session: str) -> bool:
        lease = self._hub.catalog.lease(f"session:{session}")
        if lease is None or lease.expires <= self._hub.clock.now_ns():
            return False
        return not is_dead(lease.owner, self._host)

    def _warn(
        self, before: Sequence[Level], after: Sequence[Level], paid: Amounts
    ) -> tuple[list[Draft], list[Level]]:
        """Soft limits that this spend reaches; each is told once."""
        drafts: list[Draft] = []
        found: list[Level] = []
        for old, new in zip(before, after, strict=True):
            account = new.account
            if any(account.warned.get(name) != account.soft.get(name) for name in account.soft):
                spent = budget_math.add(spent_by(self._hub.catalog, old.family), paid)
                told = budget_math.to_warn(account, spent)
                for name, limit in told.items():
                    data = {"what": "budget", "name": name, "limit": limit}
                    data["spent"] = spent.get(name, 0.0)  # a limit of nothing is reached at once
                    drafts.append(self._draft("warning", data))
                account = replace(account, warned={**account.warned, **told})
            found.append(replace(new, account=account))
        return drafts, found

    def _seconds(self, found: Sequence[Level], said: Amounts, now: int) -> dict[str, float]:
        """Wall time since it was last counted, where somebody has set a limit for it."""
        elapsed = max(0, now - self._mark) / 1e9
        return {SECONDS: elapsed} if _timed(found) and elapsed and SECONDS not in said else {}

    def _refusal(self, short: Short) -> Refused:
        level, names = short[0]
        account, spent = level.account, spent_by(self._hub.catalog, level.family)
        parts, raised = [], []
        for name in names:
            if name in level.purse.share and name in budget_math.used_up(level.purse):
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
            left=left_for(self._hub.catalog, self._row),
            limits=account.limits,
            spent=spent,
            session=self._row.id,
        )

    def _share_spent(self, level: Level, name: str) -> Refused:
        most, used = level.purse.share[name], level.purse.spent.get(name, 0.0)
        return Refused(
            "budget_spent",
            f"session {self._row.name!r} has spent its share ({name} {used:g} of {most:g}) and is "
            "paused: give each attempt more with budget=",
            left=left_for(self._hub.catalog, self._row),
            limits=level.purse.share,
            spent=level.purse.spent,
            session=self._row.id,
        )

    @staticmethod
    def _changed(level: Level, new: tuple[Account, Purse]) -> Level:
        return replace(level, account=new[0], purse=new[1])

    def _draft(self, kind: str, data: dict[str, Any]) -> Draft:
        return Draft(kind, data, self._hub.author)


def _timed(found: Sequence[Level]) -> bool:
    """Whether somebody has set a limit for wall time."""
    return any(SECONDS in limits for x in found for limits in (x.account.limits, x.account.soft))


def _again(attempt: Callable[[], T]) -> T:
    """Until no sibling was faster."""
    for _ in range(_TRIES - 1):
        try:
            return attempt()
        except Conflict as error:
            if error.kind != "row_moved":
                raise
    return attempt()
