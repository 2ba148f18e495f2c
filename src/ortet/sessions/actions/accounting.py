"""The accounting facet of a session: spends, limits and model calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet._util.validation import DICT, check_text, optional
from ortet.errors import Invalid, Refused
from ortet.journal.events import Draft, Event
from ortet.sessions.actions.artifacts import StoredContent, as_bytes, load, store_content
from ortet.sessions.actions.budget import levels, remaining_for, spent_by
from ortet.sessions.actions.budget_math import SOFT, Amounts, check_amounts, parse_limits
from ortet.sessions.context import SessionContext
from ortet.sessions.writing.pipeline import VerbPipeline, need_writer
from ortet.store.sweep_retry import run_with_sweep_retry


class Accounting:
    """Spends, limits and model calls of a session and its family."""

    def __init__(self, context: SessionContext, pipeline: VerbPipeline | None = None) -> None:
        self._context = context
        self._pipeline = pipeline

    @property
    def _verbs(self) -> VerbPipeline:
        return need_writer(self._pipeline)

    def spend(self, *, model: str = "", **amounts: float) -> Event:
        """Record that some of the budget was used.

        The spend is recorded even if it exceeds a limit. The session is then paused.

        Args:
            model: the model that was paid.
            **amounts: the amount of each counter, such as tokens or usd.

        Raises:
            Refused: "budget_spent" if a limit is exceeded. It says what is left and how to raise
                the limit.
        """
        check_text(model=model)
        return self._spend(check_amounts(amounts), model)

    def budget(self, *, soft: Mapping[str, float | None] | None = None, **limits: Any) -> Event:
        """Set limits for this session and its forks. Limits that are not given stay.

        Args:
            soft: limits that record a warning once when they are reached.
            **limits: hard limits by counter; None removes one. The session pauses when one is
                exceeded.
        """
        optional(DICT, soft=soft)
        asked = parse_limits({**limits, SOFT: soft or {}})
        if not asked.hard and not asked.soft:
            raise Invalid("bad_budget", "no limit was given: as s.budget(usd=10)")
        self._verbs.begin_change()
        return self._verbs.budget.limit(asked)

    def model_call(  # noqa: PLR0917 - in the order one says it
        self,
        provider: str,
        model: str,
        params: Mapping[str, Any] | None = None,
        usage: Mapping[str, Any] | None = None,
        request: Any = None,
        response: Any = None,
    ) -> Event:
        """Record a model call that was made, and spend its usage; see `spend`.

        Request and response are stored as objects that the event refers to. Known secrets in them
        are replaced by their names.

        Args:
            provider: the provider of the model.
            model: the name of the model.
            params: the parameters of the call.
            usage: the usage report. Every number in it is spent.
            request: bytes, text or plain data.
            response: bytes, text or plain data.

        Returns:
            The event of the call.

        Raises:
            Refused: "budget_spent" if a limit is exceeded. The call is recorded.
        """
        optional(DICT, params=params, usage=usage)
        usage = dict(usage or {})
        data = call_data(provider, model, dict(params or {}), usage)
        amounts = check_amounts(amounts_of(usage))
        parts = {"request": request, "response": response}
        said = {name: as_bytes(value) for name, value in parts.items() if value is not None}
        self._verbs.begin_change()

        store = self._context.store

        def tell() -> tuple[list[Event], Refused | None]:
            with store.writing():  # a sweep must not delete the objects before the event exists
                refs = []
                for name, content in said.items():
                    stored = store_content(store.objects, store.secrets.redact_bytes(content))
                    data[name] = {"oid": stored.oid, "size": stored.size}
                    refs += stored.refs
                store.objects.flush()
                draft = Draft("model", data, store.author, refs)
                return self._verbs.budget.spend(amounts, model=model, drafts=[draft])

        events, refusal = run_with_sweep_retry(store, tell)
        self._verbs.auto_commit_if_due("model", data)
        if refusal is not None:
            self._verbs.stop(refusal)
        return events[0]

    # reading

    def budget_left(self) -> dict[str, float]:
        """Return the remaining amount of each limited counter.

        Limits of the session that this one works for are included. On an open session, time is
        counted up to now.
        """
        if self._pipeline is None:
            return remaining_for(self._context.store.catalog, self._context.row)
        return self._pipeline.budget.remaining()

    def spent(self) -> dict[str, float]:
        """Return the amounts spent by the family and by sessions that work for it.

        A restore refunds nothing.
        """
        found = spent_by(self._context.store.catalog, self._context.row.family)
        # state of a session that came from another host
        for name, amount in self._context.state.core.spent.items():
            found[name] = max(found.get(name, 0.0), amount)
        return found

    def limits(self) -> dict[str, float]:
        """Return the hard limits of the family."""
        return levels(self._context.store.catalog, self._context.row)[0].account.limits

    def model_calls(self) -> list[ModelCall]:
        """Return all recorded model calls, in order."""
        return list(calls_of(self._context.events()))

    def content(self, content: StoredContent) -> bytes:
        """Return the bytes of a recorded request or response."""
        return load(self._context.store.objects, content)

    # private

    def _spend(self, amounts: Amounts, model: str) -> Event:
        self._verbs.begin_change()
        events, refusal = self._verbs.budget.spend(amounts, model=model)
        self._verbs.auto_commit_if_due("spend", {})
        if refusal is not None:
            self._verbs.stop(refusal)
        return events[0]


# Recorded model calls: request, response, usage and cost.

_INPUT = ("input_tokens", "prompt_tokens")
_OUTPUT = ("output_tokens", "completion_tokens")


class ModelCall(msgspec.Struct, frozen=True):
    """One model call. `s.accounting.content(call.request)` reads the stored request or response.

    Attributes:
        seq: Number of its event.
        time: When it was recorded, in ns since 1970.
        provider: Provider of the model.
        model: Name of the model.
        params: Parameters of the call.
        usage: Usage as the provider reports it.
        request: The stored request.
        response: The stored response.
    """

    seq: int
    time: int
    provider: str
    model: str
    params: dict[str, Any]
    usage: dict[str, Any]
    request: StoredContent
    response: StoredContent


def amounts_of(usage: Mapping[str, Any]) -> dict[str, float]:
    """Return the amounts of a usage report.

    `tokens` is computed from its parts if it is missing.
    """
    found = {
        name: value
        for name, value in usage.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if "tokens" not in found:
        parts = [found[name] for name in (*_INPUT, *_OUTPUT) if name in found]
        if "total_tokens" in found:
            found["tokens"] = found["total_tokens"]
        elif parts:
            found["tokens"] = sum(parts)
    return found


def call_data(
    provider: str, model: str, params: Mapping[str, Any], usage: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the data of a "model" event, without the stored contents."""
    if not isinstance(model, str) or not model:
        raise Invalid("bad_model", f"model {model!r}: say which model was called")
    check_text(provider=provider)
    return {
        "provider": provider,
        "model": model,
        "params": dict(params),
        "usage": dict(usage),
    }


def calls_of(events: Iterable[Event]) -> Iterator[ModelCall]:
    for event in events:
        if event.kind == "model" and not event.erased:
            data = event.data
            yield ModelCall(
                seq=event.seq,
                time=event.time,
                provider=data.get("provider", ""),
                model=data.get("model", ""),
                params=data.get("params", {}),
                usage=data.get("usage", {}),
                request=_content(data.get("request")),
                response=_content(data.get("response")),
            )


def _content(data: Any) -> StoredContent:
    return (
        msgspec.convert(data, thread_safe_struct(StoredContent)) if data else StoredContent("", 0)
    )
