"""Collects translated lines and appends them to a session in batches, each line all or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from ortet.errors import Invalid
from ortet.hub.hub import hub_of
from ortet.integrations.transcripts.line_tree import ImportedLine
from ortet.integrations.transcripts.lines import encode_raw
from ortet.journal.event_chain import encode_body
from ortet.journal.events import MAX_BODY_BYTES, Draft, ObjectRef
from ortet.journal.spill import SPILL_KEY, spill_long_texts
from ortet.sessions.actions.budget_math import add
from ortet.sessions.session import Session
from ortet.sessions.writing.bulk_import import PastSpend, import_events, store_content
from ortet.store.sweep_retry import run_with_sweep_retry

_MAX_BATCH_EVENTS = 500
_MAX_BATCH_BYTES = 1 << 20
_MAX_INLINE_BYTES = 256 << 10
"""Size above which the long texts of an event are stored as objects."""
_SPILL_TEXT_LIMITS = (16 << 10, 1 << 10, 100)
"""Length limits of inline texts, tried in turn while an event is too large."""
_RAW_PREVIEW_BYTES = 200
_DAY_NS = 86_400 * 10**9

Raw = Callable[[], bytes]


class ImportBatch:
    """Lines that wait to be appended. `event_counts` counts the appended events by kind."""

    def __init__(self, session: Session, tool: str) -> None:
        self._session = session
        self._tool = tool
        self._lines: list[tuple[list[Draft], Raw]] = []
        self._bytes = self._events = 0
        self._model_usage: PastSpend | None = None
        self.event_counts: Counter[str] = Counter()
        self.files: dict[str, None] = {}
        self.spent: dict[str, float] = {}

    def add(
        self,
        key: str,
        entry: ImportedLine | None,
        raw: Raw,
        *,
        size: int,
        model_usage: PastSpend | None,
    ) -> None:
        """Add a line. None stands for a line that was not understood and is stored unchanged."""
        drafts = entry.drafts if entry is not None else []
        if model_usage is not None and not self._is_same_bill(model_usage):
            self.flush()
        self._lines.append(([_keyed(one, key) for one in drafts[:1]] + drafts[1:], raw))
        self._bytes += size
        self._events += len(drafts) or 1
        if not drafts:
            self._lines[-1] = ([Draft(f"{self._tool}.line", {"line": key})], raw)
        if entry is None or entry.unknown:
            self.event_counts["unknown"] += 1
        if model_usage is not None:
            before = self._model_usage.amounts if self._model_usage is not None else {}
            self._model_usage = msgspec.structs.replace(
                model_usage, amounts=dict(add(before, model_usage.amounts))
            )
        if self._bytes >= _MAX_BATCH_BYTES or self._events >= _MAX_BATCH_EVENTS:
            self.flush()

    def flush(self) -> None:
        """Append all waiting lines; they are durable on return."""
        if not self._lines:
            return
        drafts = run_with_sweep_retry(hub_of(self._session).store, self._write_batch)
        self.event_counts.update(draft.kind for draft in drafts)
        self.files |= {
            one.data["name"]: None
            for one in drafts
            if one.kind == "artifact" and one.data["kind"] == "file"
        }
        if self._model_usage is not None:
            self.spent = dict(add(self.spent, self._model_usage.amounts))
        self._lines, self._model_usage = [], None
        self._bytes = self._events = 0

    def _write_batch(self) -> list[Draft]:
        hub = hub_of(self._session)
        with (
            hub.store.writing()
        ):  # A sweep must not delete objects before the events refer to them.
            drafts = [self._fit(one, raw) for several, raw in self._lines for one in several]
            if any(draft.refs for draft in drafts):
                hub.objects.flush()
            import_events(self._session, drafts, self._model_usage)
        return drafts

    def _is_same_bill(self, model_usage: PastSpend) -> bool:
        """Return True if the usage is of the same model and day as the batch so far."""
        before = self._model_usage
        return before is None or (before.model, before.at // _DAY_NS) == (
            model_usage.model,
            model_usage.at // _DAY_NS,
        )

    def _fit(self, draft: Draft, raw: Raw) -> Draft:
        """Return a draft that fits into the journal, with long texts stored as objects.

        If that is not enough, return a draft of the raw line.
        """
        fitting = msgspec.structs.replace(draft, actor=self._session.internals.store.author)
        if set(draft.data) == {"line"}:
            return self._raw_line_draft(fitting, raw())
        for limit in _SPILL_TEXT_LIMITS:
            size = _size(fitting)
            if size is None:
                break
            if size <= _MAX_INLINE_BYTES:
                return fitting
            fitting = self._spill_texts(fitting, limit)
        size = _size(fitting)
        return (
            fitting
            if size is not None and size <= MAX_BODY_BYTES
            else self._raw_line_draft(draft, raw())
        )

    def _spill_texts(self, draft: Draft, limit: int) -> Draft:
        refs: list[ObjectRef] = list(draft.refs)

        def put(data: bytes) -> dict[str, Any]:
            content = store_content(self._session, data)
            refs.extend(content.refs)
            return {"oid": content.oid, "size": content.size}

        data = spill_long_texts(draft.data, limit, put)
        return msgspec.structs.replace(draft, data=data, refs=refs)

    def _raw_line_draft(self, draft: Draft, raw: bytes) -> Draft:
        """Return a draft with the raw line."""
        key = key_of(draft.data)
        data: dict[str, Any] = {"line": key} if key else {}
        if len(raw) <= _MAX_INLINE_BYTES // 2:
            return Draft(
                f"{self._tool}.line", data | encode_raw(raw), self._session.internals.store.author
            )
        content = store_content(self._session, raw)
        data["raw"] = encode_raw(raw[:_RAW_PREVIEW_BYTES]).get("raw", "") + "…"
        data[SPILL_KEY] = [[["raw"], {"oid": content.oid, "size": content.size}]]
        return Draft(f"{self._tool}.line", data, self._session.internals.store.author, content.refs)


def _size(draft: Draft) -> int | None:
    """Return the encoded size, or None if the data is not plain."""
    try:
        return len(encode_body(draft))
    except Invalid as error:
        return MAX_BODY_BYTES + 1 if error.kind == "payload_too_large" else None
    except (OverflowError, ValueError, TypeError, RecursionError):
        return None


def _keyed(draft: Draft, key: str) -> Draft:
    """Add the key of the line, which identifies it when the file is read again."""
    data = draft.data
    if draft.kind == "message":
        return Draft("message", {**data, "extra": {**data["extra"], "line": key}})
    return Draft(draft.kind, {"line": key, **data})


def key_of(data: dict[str, Any]) -> str:
    """Return the line key in the data of a line's first event; "" for its other events."""
    extra = data.get("extra")
    key = data.get("line") or (extra.get("line") if isinstance(extra, dict) else "")
    return key if isinstance(key, str) else ""
