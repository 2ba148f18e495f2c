"""What was spent, by whom, on which model, when: counted by the hour, and kept for good.

The rows are written with the spend events and outlive them: what was erased was still paid for.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Literal, get_args

import msgspec

from ortet.backend.abc import Catalog, RowChange
from ortet.codec import decode, encode
from ortet.errors import Invalid
from ortet.session.lifecycle import SessionRow
from ortet.session.purses import Amounts, add

By = Literal["agent", "session", "model", "day"]
Since = int | str | date | datetime | None
_KIND = "bill"
_HOUR = "%Y-%m-%dT%H"


class Bill(msgspec.Struct, frozen=True):
    """One line of a bill: all that was spent by one agent, session, on one model or day.

    `name` is what people call it; `key` of a session is its id.
    """

    key: str
    name: str
    amounts: dict[str, float]
    spends: int


class Hour(msgspec.Struct, frozen=True):
    """What one session spent on one model in one hour."""

    agent: str
    session: str
    name: str
    model: str = ""
    amounts: dict[str, float] = {}
    spends: int = 0


def charged(
    catalog: Catalog, row: SessionRow, amounts: Amounts, model: str, now_ns: int
) -> RowChange:
    """The row that counts one more spend. Only the session's own writer changes it."""
    key = f"{_moment(now_ns).strftime(_HOUR)}/{row.id}/{model}"
    found = catalog.row(_KIND, key)
    old = decode(Hour, found.value) if found else Hour(row.agent, row.id, row.name, model)
    new = msgspec.structs.replace(old, amounts=add(old.amounts, amounts), spends=old.spends + 1)
    return RowChange(_KIND, key, encode(new), expect=found.version if found else 0)


def bill(catalog: Catalog, since: Since, by: By) -> list[Bill]:
    """Totals in order of their keys. `since` counts from the beginning of its hour, UTC."""
    if by not in get_args(By):
        raise Invalid("bad_bill", f"by={by!r}: give one of {', '.join(get_args(By))}")
    lines: dict[str, Bill] = {}
    for hour, part in _hours(catalog, _after(since)):
        key = {"agent": part.agent, "session": part.session, "model": part.model}.get(by, hour[:10])
        name = part.name if by == "session" else key
        old = lines.get(key) or Bill(key, name, {}, 0)
        lines[key] = Bill(key, name, add(old.amounts, part.amounts), old.spends + part.spends)
    return [lines[key] for key in sorted(lines)]


def _hours(catalog: Catalog, after: str) -> Iterator[tuple[str, Hour]]:
    while page := catalog.rows(_KIND, after):
        for row in page:
            yield row.key.partition("/")[0], decode(Hour, row.value)
        after = page[-1].key


def _after(since: Since) -> str:
    """A key that is less than all of this time: each has a slash behind the hour."""
    if since is None:
        return ""
    if isinstance(since, str):
        try:
            since = datetime.fromisoformat(since)
        except ValueError:
            raise _bad_time(since) from None
    if isinstance(since, datetime):
        moment = since if since.tzinfo else since.replace(tzinfo=UTC)
        return moment.astimezone(UTC).strftime(_HOUR)
    if isinstance(since, date):
        return since.isoformat()
    if isinstance(since, bool) or not isinstance(since, int):
        raise _bad_time(since)
    return _moment(since).strftime(_HOUR)


def _moment(ns: int) -> datetime:
    return datetime.fromtimestamp(ns // 10**9, UTC)


def _bad_time(since: object) -> Invalid:
    return Invalid(
        "bad_time", f"since={since!r}: give a date, a datetime, '2026-01-31', or ns since 1970"
    )
