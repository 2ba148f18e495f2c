"""Recorded model calls: request, response, usage and cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ortet._util.codec import to_json
from ortet._util.structs import thread_safe_struct
from ortet._util.validation import check_text
from ortet.errors import Invalid
from ortet.journal.events import Event, check_plain
from ortet.sessions.actions.artifacts import StoredContent

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


def as_bytes(value: Any) -> bytes:
    """Return bytes and text as they are, anything else as JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    check_plain(value)
    return to_json(value).encode()


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
