"""A session as spans of OpenTelemetry, by its conventions for generative AI: OTLP as JSON.

One trace a session: `invoke_agent` for the whole of it, one below for each turn, and in those a
`chat` for each call of a model and an `execute_tool` for each tool that was used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from ortet import __version__
from ortet._util.codec import to_json
from ortet.journal.conversation.text import text_of
from ortet.journal.conversation.tool_calls import calls_of, results_of
from ortet.journal.events import Event
from ortet.journal.state.records import Message
from ortet.journal.state.reducers import message_of
from ortet.sessions.reader import View

_INTERNAL, _CLIENT = 1, 3
_ERROR = 2
_TRACE = re.compile(r"[0-9a-f]{32}\Z")
_INPUT = ("input_tokens", "prompt_tokens")
_OUTPUT = ("output_tokens", "completion_tokens")
_CACHED = {
    "cache_read_input_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_creation_input_tokens": "gen_ai.usage.cache_creation.input_tokens",
}
_TURN = "invoke_agent"


class Span(msgspec.Struct):
    """One that may still be going on."""

    id: str
    parent: str
    name: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any]
    error: str = ""


def spans_of(view: View, *, content: bool = False) -> dict[str, Any]:
    """The data of an OTLP request. What was said, asked of tools and answered by them is in it only
    with `content`: it may be what nobody but its owner should see."""
    telling = _Telling(view, content=content)
    for event in view.events():
        if not event.erased and not event.waiting:
            telling.see(event)
    resource = {"service.name": "ortet", "service.version": __version__}
    scope = {"name": "ortet", "version": __version__}
    spans = [_told(span, telling.trace) for span in telling.done()]
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": scope, "spans": spans}],
            }
        ]
    }


class _Telling:
    def __init__(self, view: View, *, content: bool) -> None:
        self._id = view.id
        self.trace = view.id if _TRACE.match(view.id) else _hash(view.id, 16)
        self._content = content
        self._agent = {
            "gen_ai.operation.name": _TURN,
            "gen_ai.agent.name": view.agent,
            "gen_ai.conversation.id": view.id,
        }
        self._name = f"{_TURN} {view.agent}"
        self._all: list[Span] = []
        self._turn: Span | None = None
        self._open: dict[str, Span] = {}  # by the id of the call, or of the deed
        self._asked = self._last = 0
        self._created = view.row.created
        self._root = self._span(
            "root", "", self._name, 0, {**self._agent, "ortet.session": view.name}
        )

    def see(self, event: Event) -> None:
        data = event.data
        if event.kind == "message":
            message = message_of(event)
            self._message(event, message, self._at(event, message.extra))
        elif event.kind == "model":
            self._model(event, data, self._at(event, data))
        elif event.kind == "begun" and data.get("call") not in self._open:
            at = self._at(event, data)
            given = data.get("kwargs") or data.get("args")
            self._tool(event, data["id"], name=str(data.get("name", "")), given=given, at=at)
        elif event.kind == "ended" and data.get("id") in self._open:
            failed = data.get("state") != "done"
            error = str(data.get("error") or data.get("state")) if failed else ""
            self._end(data["id"], self._at(event, data), data.get("outcome"), error=error)

    def done(self) -> list[Span]:
        self._root.start = self._root.start or self._created
        for span in [*self._open.values(), *([self._turn] if self._turn else []), self._root]:
            span.end = max(span.start, span.end, self._last)
        for span in self._open.values():
            span.attributes["ortet.unsettled"] = True
        return sorted(self._all, key=lambda span: (span.start, span is not self._root))

    def _at(self, event: Event, told: Mapping[str, Any]) -> int:
        """When it happened: of what was told afterwards, as that says."""
        at = told.get("at")
        found = at if isinstance(at, int) and at > 0 else event.time
        self._last = max(self._last, found)
        if not self._root.start:
            self._root.start = found
        return found

    def _message(self, event: Event, message: Message, at: int) -> None:
        results = results_of(message)
        for id_ in results:
            self._end(id_, at, _result(message, id_), error=_failure(message, id_))
        if message.role == "assistant":
            self._within(event, at)
            for call in calls_of(message):
                given = _given(message, call.id)
                self._tool(event, call.id, name=call.name, given=given, at=at)
            if self._content and self._turn and (text := text_of(message.content)):
                self._turn.attributes["gen_ai.output.messages"] = _said("assistant", text)
        else:
            self._asked = at
            if not results and message.role == "user":
                self._begin(event, at)
                if self._content and self._turn:
                    said = _said("user", text_of(message.content))
                    self._turn.attributes["gen_ai.input.messages"] = said

    def _begin(self, event: Event, at: int) -> None:
        if self._turn is not None:
            self._turn.end = max(self._turn.end, at)
        named = self._span(f"turn/{event.seq}", self._root.id, self._name, at, dict(self._agent))
        self._turn = named

    def _within(self, event: Event, at: int) -> Span:
        """The turn that it belongs to; one begins where nobody asked."""
        if self._turn is None:
            self._begin(event, at)
        assert self._turn is not None
        self._turn.end = max(self._turn.end, at)
        return self._turn

    def _model(self, event: Event, data: dict[str, Any], at: int) -> None:
        turn = self._within(event, at)
        model, provider = str(data.get("model", "")), str(data.get("provider", ""))
        told = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider or "_OTHER",
            "gen_ai.request.model": model,
            "gen_ai.conversation.id": self._id,
            **_usage(data.get("usage")),
        }
        start = min(self._asked or at, at)
        span = self._span(f"chat/{event.seq}", turn.id, f"chat {model}".strip(), start, told)
        span.kind, span.end = _CLIENT, at
        self._asked = at

    def _tool(self, event: Event, id_: str, *, name: str, given: Any, at: int) -> None:
        turn = self._within(event, at)
        told = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": id_,
            "gen_ai.conversation.id": self._id,
        }
        if self._content and given is not None:
            told["gen_ai.tool.call.arguments"] = to_json(given)
        word = f"execute_tool {name}".strip()
        self._open[id_] = self._span(f"tool/{event.seq}/{id_}", turn.id, word, at, told)

    def _end(self, id_: str, at: int, result: Any, *, error: str) -> None:
        span = self._open.pop(id_, None)
        if span is None:
            return
        span.end, span.error = max(span.start, at), error
        if error:
            span.attributes["error.type"] = "tool_error"
        if self._content and result is not None:
            span.attributes["gen_ai.tool.call.result"] = to_json(result)

    def _span(self, key: str, parent: str, name: str, start: int, told: dict[str, Any]) -> Span:
        id_ = _hash(f"{self._id}/{key}", 8)
        span = Span(id_, parent, name, _INTERNAL, start, start, told)
        self._all.append(span)
        return span


def _usage(usage: Any) -> dict[str, int]:
    """Tokens; those that came from a cache are part of what went in."""
    if not isinstance(usage, dict):
        return {}
    counts = {name: value for name, value in usage.items() if type(value) is int and value >= 0}
    found: dict[str, int] = {}
    for names, told in ((_INPUT, "input"), (_OUTPUT, "output")):
        if known := [counts[name] for name in names if name in counts]:
            found[f"gen_ai.usage.{told}_tokens"] = known[0]
    for name, told in _CACHED.items():
        if name in counts:
            found[told] = counts[name]
            key = "gen_ai.usage.input_tokens"
            found[key] = found.get(key, 0) + counts[name]
    return found


def _part(message: Message, kind: str, key: str, id_: str) -> dict[str, Any] | None:
    content = message.content if isinstance(message.content, list) else []
    for part in content:
        if isinstance(part, dict) and part.get("type") == kind and part.get(key) == id_:
            return part
    return None


def _result(message: Message, id_: str) -> Any:
    part = _part(message, "tool_result", "tool_use_id", id_)
    return message.content if part is None else part.get("content")


def _failure(message: Message, id_: str) -> str:
    part = _part(message, "tool_result", "tool_use_id", id_)
    return "failed" if part is not None and part.get("is_error") is True else ""


def _given(message: Message, id_: str) -> Any:
    if (part := _part(message, "tool_use", "id", id_)) is not None:
        return part.get("input")
    for call in message.extra.get("tool_calls") or ():
        if isinstance(call, dict) and call.get("id") == id_:
            function = call.get("function")
            return function.get("arguments") if isinstance(function, dict) else call.get("args")
    return None


def _said(role: str, text: str) -> str:
    return to_json([{"role": role, "parts": [{"type": "text", "content": text}]}])


def _hash(text: str, size: int) -> str:
    return blake2b(text.encode(), digest_size=size).hexdigest()


def _told(span: Span, trace: str) -> dict[str, Any]:
    told = {
        "traceId": trace,
        "spanId": span.id,
        "parentSpanId": span.parent,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(span.end),
        "attributes": _attributes(span.attributes),
        "status": {"code": _ERROR, "message": span.error} if span.error else {},
    }
    return {key: value for key, value in told.items() if key != "parentSpanId" or value}


def _attributes(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in told.items()]


def _value(value: Any) -> dict[str, Any]:
    """Numbers of 64 bits are text, in the JSON of OTLP."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": str(value)}
