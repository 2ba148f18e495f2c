"""Billing records: amounts by session, model and second.

There is one row a minute, session and model. Rows are written with the spend events and are never
deleted: erased events were still paid for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Literal, get_args

import msgspec

from ortet._util.codec import decode, encode
from ortet.backends.base import Catalog, RowChange
from ortet.errors import Invalid
from ortet.sessions.actions.budget_math import Amounts, add
from ortet.sessions.table import SessionRow

GroupBy = Literal["agent", "session", "model", "day"]
Since = int | str | date | datetime | None
_KIND = "bill"
_MINUTE = "%Y-%m-%dT%H:%M"
_MINUTE_LENGTH = len("2026-01-31T23:59")
_SECOND = "%Y-%m-%dT%H:%M:%S"


class Bill(msgspec.Struct, frozen=True):
    """One line of a bill: the total of one agent, session, model or day.

    Attributes:
        key: The agent, the id of the session, the model, or the day.
        name: The name to show.
        amounts: Total of each counter.
        spends: Number of spends.
    """

    key: str
    name: str
    amounts: dict[str, float]
    spends: int


class Second(msgspec.Struct, frozen=True):
    """The spends of one second of a minute."""

    at: int
    amounts: dict[str, float]
    spends: int


class SpendRecord(msgspec.Struct, frozen=True):
    """The spend of one session on one model in one second. `time` is in ns since 1970."""

    time: int
    session: str
    model: str
    amounts: dict[str, float]


class MinuteSpend(msgspec.Struct, frozen=True):
    """The spend of one session on one model in one minute.

    Rows of an earlier release cover one hour and have no `seconds`.
    """

    agent: str
    session: str
    name: str
    model: str = ""
    amounts: dict[str, float] = {}
    spends: int = 0
    seconds: list[Second] = []

    def plus(self, at: int, amounts: Amounts) -> MinuteSpend:
        parts = {part.at: part for part in self.seconds}
        old = parts.get(at, Second(at, {}, 0))
        parts[at] = Second(at, add(old.amounts, amounts), old.spends + 1)
        return msgspec.structs.replace(
            self,
            amounts=add(self.amounts, amounts),
            spends=self.spends + 1,
            seconds=[parts[second] for second in sorted(parts)],
        )

    def since(self, second: int) -> MinuteSpend:
        """Return the record without spends before `second` of its minute."""
        kept = [part for part in self.seconds if part.at >= second]
        amounts: Amounts = {}
        for part in kept:
            amounts = add(amounts, part.amounts)
        spends = sum(part.spends for part in kept)
        return msgspec.structs.replace(self, amounts=amounts, spends=spends, seconds=kept)


def bill_row_change(
    catalog: Catalog, row: SessionRow, amounts: Amounts, model: str, now_ns: int
) -> RowChange:
    """Return the row change that adds one spend. Only the session's own writer changes the row."""
    now = _moment(now_ns)
    key = f"{now.strftime(_MINUTE)}/{row.id}/{model}"
    found = catalog.row(_KIND, key)
    old = (
        decode(MinuteSpend, found.value)
        if found
        else MinuteSpend(row.agent, row.id, row.name, model)
    )
    new = encode(old.plus(now.second, amounts))
    return RowChange(_KIND, key, new, expect=found.version if found else 0)


def bill(
    catalog: Catalog, since: Since, by: GroupBy, *, sees: Callable[[str], bool] = lambda _: True
) -> list[Bill]:
    """Return the totals in order of their keys.

    Args:
        since: count from the start of this second, in UTC; None for all.
        by: what one line stands for.
        sees: says which agents are included.
    """
    if by not in get_args(GroupBy):
        raise Invalid("bad_bill", f"by={by!r}: give one of {', '.join(get_args(GroupBy))}")
    lines: dict[str, Bill] = {}
    for when, part in _spans(catalog, _parse_since(since)):
        if not sees(part.agent):
            continue
        key = {"agent": part.agent, "session": part.session, "model": part.model}.get(by, when[:10])
        name = part.name if by == "session" else key
        old = lines.get(key) or Bill(key, name, {}, 0)
        lines[key] = Bill(key, name, add(old.amounts, part.amounts), old.spends + part.spends)
    return [lines[key] for key in sorted(lines)]


def spends(catalog: Catalog, since: Since) -> Iterator[SpendRecord]:
    """Iterate over the spends in order of their minutes. A row without seconds yields one spend."""
    for when, part in _spans(catalog, _parse_since(since)):
        minute = int(datetime.fromisoformat(_full_timestamp(when)).timestamp())
        for one in part.seconds or [Second(0, part.amounts, part.spends)]:
            at = (minute + one.at) * 10**9
            yield SpendRecord(at, part.session, part.model, one.amounts)


def _full_timestamp(when: str) -> str:
    """Return the ISO timestamp of a row key: a minute, or an hour in an earlier release."""
    return f"{when}+00:00" if len(when) == _MINUTE_LENGTH else f"{when}:00+00:00"


def _spans(catalog: Catalog, start: str) -> Iterator[tuple[str, MinuteSpend]]:
    """Iterate over the rows starting at `start`.

    Row keys are `MINUTE/...`, so the bare minute sorts before all of its keys.
    """
    after, second = start[:_MINUTE_LENGTH], int(start[_MINUTE_LENGTH + 1 :] or 0)
    first = after
    while page := catalog.rows(_KIND, after):
        for row in page:
            when, span = row.key.partition("/")[0], decode(MinuteSpend, row.value)
            if second and when == first:
                span = span.since(second)
            if span.spends:
                yield when, span
        after = page[-1].key


def _parse_since(since: Since) -> str:
    """Return `since` as an ISO prefix with the given precision, in UTC."""
    if since is None:
        return ""
    if isinstance(since, str):
        try:
            since = datetime.fromisoformat(since)
        except ValueError:
            raise _bad_time(since) from None
    if isinstance(since, datetime):
        moment = since if since.tzinfo else since.replace(tzinfo=UTC)
        return moment.astimezone(UTC).strftime(_SECOND)
    if isinstance(since, date):
        return since.isoformat()
    if isinstance(since, bool) or not isinstance(since, int):
        raise _bad_time(since)
    return _moment(since).strftime(_SECOND)


def _moment(ns: int) -> datetime:
    return datetime.fromtimestamp(ns // 10**9, UTC)


def _bad_time(since: object) -> Invalid:
    return Invalid(
        "bad_time", f"since={since!r}: give a date, a datetime, '2026-01-31', or ns since 1970"
    )
