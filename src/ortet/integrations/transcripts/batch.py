"""Lines on their way into a session: so many at once, each whole or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from ortet.errors import Invalid
from ortet.integrations.transcripts.line_tree import Entry
from ortet.integrations.transcripts.lines import shown
from ortet.journal.events import MAX_BODY, Draft, Ref, encode_body
from ortet.journal.spill import BESIDE, lightened
from ortet.sessions.actions.budget_math import add
from ortet.sessions.session import Session
from ortet.sessions.writing.bulk_import import Paid, keep, retell
from ortet.store.sweep_retry import repeated

_EVENTS = 500
_BYTES = 1 << 20
_LIGHT = 256 << 10
"""Bytes of an event that are stored in it; of more, long texts lie beside it in the store."""
_LONG = (16 << 10, 1 << 10, 100)
"""Characters of a text that is long, in an event that is still too large."""
_BEGINNING = 200
_DAY = 86_400 * 10**9

Raw = Callable[[], bytes]


class Batch:
    """What waits to be told. `count` says how many events of each kind there were."""

    def __init__(self, session: Session, tool: str) -> None:
        self._session = session
        self._tool = tool
        self._lines: list[tuple[list[Draft], Raw]] = []
        self._bytes = self._events = 0
        self._paid: Paid | None = None
        self.count: Counter[str] = Counter()
        self.files: dict[str, None] = {}
        self.spent: dict[str, float] = {}

    def add(self, key: str, entry: Entry | None, raw: Raw, *, size: int, paid: Paid | None) -> None:
        """A line; None is one that nobody understands, which is kept as it is."""
        drafts = entry.drafts if entry is not None else []
        if paid is not None and not self._goes_with(paid):
            self.flush()
        self._lines.append(([_keyed(one, key) for one in drafts[:1]] + drafts[1:], raw))
        self._bytes += size
        self._events += len(drafts) or 1
        if not drafts:
            self._lines[-1] = ([Draft(f"{self._tool}.line", {"line": key})], raw)
        if entry is None or entry.unknown:
            self.count["unknown"] += 1
        if paid is not None:
            before = self._paid.amounts if self._paid is not None else {}
            self._paid = msgspec.structs.replace(paid, amounts=dict(add(before, paid.amounts)))
        if self._bytes >= _BYTES or self._events >= _EVENTS:
            self.flush()

    def flush(self) -> None:
        """Durable now."""
        if not self._lines:
            return
        drafts = repeated(self._session.hub, self._retold)
        self.count.update(draft.kind for draft in drafts)
        self.files |= {
            one.data["name"]: None
            for one in drafts
            if one.kind == "artifact" and one.data["kind"] == "file"
        }
        if self._paid is not None:
            self.spent = dict(add(self.spent, self._paid.amounts))
        self._lines, self._paid = [], None
        self._bytes = self._events = 0

    def _retold(self) -> list[Draft]:
        hub = self._session.hub
        with hub.writing():  # until the events are there, a sweep must not take what they name
            drafts = [self._fit(one, raw) for several, raw in self._lines for one in several]
            if any(draft.refs for draft in drafts):
                hub.objects.flush()
            retell(self._session, drafts, self._paid)
        return drafts

    def _goes_with(self, paid: Paid) -> bool:
        """One step is on one model's bill of one day."""
        before = self._paid
        return before is None or (before.model, before.at // _DAY) == (paid.model, paid.at // _DAY)

    def _fit(self, draft: Draft, raw: Raw) -> Draft:
        """As the journal can hold it: with long texts beside it, or as the line that it was."""
        fitting = msgspec.structs.replace(draft, actor=self._session.hub.author)
        if set(draft.data) == {"line"}:
            return self._whole(fitting, raw())
        for limit in _LONG:
            size = _size(fitting)
            if size is None:
                break
            if size <= _LIGHT:
                return fitting
            fitting = self._lighter(fitting, limit)
        size = _size(fitting)
        return fitting if size is not None and size <= MAX_BODY else self._whole(draft, raw())

    def _lighter(self, draft: Draft, limit: int) -> Draft:
        refs: list[Ref] = list(draft.refs)

        def put(data: bytes) -> dict[str, Any]:
            content = keep(self._session, data)
            refs.extend(content.refs)
            return {"oid": content.oid, "size": content.size}

        data = lightened(draft.data, limit, put)
        return msgspec.structs.replace(draft, data=data, refs=refs)

    def _whole(self, draft: Draft, raw: bytes) -> Draft:
        """The line as it is."""
        key = key_of(draft.data)
        data: dict[str, Any] = {"line": key} if key else {}
        if len(raw) <= _LIGHT // 2:
            return Draft(f"{self._tool}.line", data | shown(raw), self._session.hub.author)
        content = keep(self._session, raw)
        data["raw"] = shown(raw[:_BEGINNING]).get("raw", "") + "…"
        data[BESIDE] = [[["raw"], {"oid": content.oid, "size": content.size}]]
        return Draft(f"{self._tool}.line", data, self._session.hub.author, content.refs)


def _size(draft: Draft) -> int | None:
    """None for what is no plain data."""
    try:
        return len(encode_body(draft))
    except Invalid as error:
        return MAX_BODY + 1 if error.kind == "payload_too_large" else None
    except (OverflowError, ValueError, TypeError, RecursionError):
        return None


def _keyed(draft: Draft, key: str) -> Draft:
    """With the key of its line, by which it is known when the file is read again."""
    data = draft.data
    if draft.kind == "message":
        return Draft("message", {**data, "extra": {**data["extra"], "line": key}})
    return Draft(draft.kind, {"line": key, **data})


def key_of(data: dict[str, Any]) -> str:
    """The key of the line whose first event has this data; "" of what comes behind."""
    extra = data.get("extra")
    found = data.get("line") or (extra.get("line") if isinstance(extra, dict) else "")
    return found if isinstance(found, str) else ""
