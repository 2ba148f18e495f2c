"""Exports a session as OpenTelemetry spans in OTLP JSON.

The spans follow the semantic conventions for generative AI. A session is one trace. Its root span
is `invoke_agent`. Below the root is one `invoke_agent` span for each turn. A turn has a `chat` span
for each model call and an `execute_tool` span for each tool call.
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
from ortet.journal.state.records import Message, message_of
from ortet.sessions.reader import SessionReader

_INTERNAL, _CLIENT = 1, 3
_ERROR = 2
_TRACE = re.compile(r"[0-9a-f]{32}\Z")
_INPUT = ("input_tokens", "prompt_tokens")
_OUTPUT = ("output_tokens", "completion_tokens")
_CACHE_TOKEN_ATTRIBUTES = {
    "cache_read_input_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_creation_input_tokens": "gen_ai.usage.cache_creation.input_tokens",
}
_INVOKE_AGENT = "invoke_agent"


class OtelSpan(msgspec.Struct):
    """A span under construction; `end` may still change."""

    id: str
    parent: str
    name: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any]
    error: str = ""


def spans_of(view: SessionReader, *, content: bool = False) -> dict[str, Any]:
    """Return the session as the body of an OTLP request.

    Args:
        view: the session to export.
        content: include messages, tool arguments and tool results. They may be confidential.
    """
    telling = _SpanBuilder(view, content=content)
    for event in view.events():
        if not event.erased and not event.waiting:
            telling.add_event(event)
    resource = {"service.name": "ortet", "service.version": __version__}
    scope = {"name": "ortet", "version": __version__}
    spans = [_span_json(span, telling.trace) for span in telling.finish()]
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": scope, "spans": spans}],
            }
        ]
    }


class _SpanBuilder:
    def __init__(self, view: SessionReader, *, content: bool) -> None:
        self._id = view.id
        self.trace = view.id if _TRACE.match(view.id) else _hash(view.id, 16)
        self._content = content
        self._agent_attributes = {
            "gen_ai.operation.name": _INVOKE_AGENT,
            "gen_ai.agent.name": view.agent,
            "gen_ai.conversation.id": view.id,
        }
        self._agent_span_name = f"{_INVOKE_AGENT} {view.agent}"
        self._spans: list[OtelSpan] = []
        self._turn: OtelSpan | None = None
        self._open_tools: dict[str, OtelSpan] = {}  # by tool call id, or by effect id
        self._last_request_ns = self._last_event_ns = 0
        self._created = view.internals.row.created
        self._root = self._span(
            "root",
            "",
            self._agent_span_name,
            0,
            {**self._agent_attributes, "ortet.session": view.name},
        )

    def add_event(self, event: Event) -> None:
        data = event.data
        if event.kind == "message":
            message = message_of(event)
            self._message(event, message, self._event_time(event, message.extra))
        elif event.kind == "model":
            self._model(event, data, self._event_time(event, data))
        elif event.kind == "begun" and data.get("call") not in self._open_tools:
            at = self._event_time(event, data)
            arguments = data.get("kwargs") or data.get("args")
            self._tool(
                event, data["id"], name=str(data.get("name", "")), arguments=arguments, at=at
            )
        elif event.kind == "ended" and data.get("id") in self._open_tools:
            failed = data.get("state") != "done"
            error = str(data.get("error") or data.get("state")) if failed else ""
            self._end(data["id"], self._event_time(event, data), data.get("outcome"), error=error)

    def finish(self) -> list[OtelSpan]:
        self._root.start = self._root.start or self._created
        for span in [*self._open_tools.values(), *([self._turn] if self._turn else []), self._root]:
            span.end = max(span.start, span.end, self._last_event_ns)
        for span in self._open_tools.values():
            span.attributes["ortet.unsettled"] = True
        return sorted(self._spans, key=lambda span: (span.start, span is not self._root))

    def _event_time(self, event: Event, data: Mapping[str, Any]) -> int:
        """Return when the event happened; imported events carry the original time in `at`."""
        at = data.get("at")
        time = at if isinstance(at, int) and at > 0 else event.time
        self._last_event_ns = max(self._last_event_ns, time)
        if not self._root.start:
            self._root.start = time
        return time

    def _message(self, event: Event, message: Message, at: int) -> None:
        results = results_of(message)
        for id_ in results:
            self._end(id_, at, _result(message, id_), error=_failure(message, id_))
        if message.role == "assistant":
            self._current_turn(event, at)
            for call in calls_of(message):
                arguments = _call_arguments(message, call.id)
                self._tool(event, call.id, name=call.name, arguments=arguments, at=at)
            if self._content and self._turn and (text := text_of(message.content)):
                self._turn.attributes["gen_ai.output.messages"] = _message_json("assistant", text)
        else:
            self._last_request_ns = at
            if not results and message.role == "user":
                self._start_turn(event, at)
                if self._content and self._turn:
                    message_json = _message_json("user", text_of(message.content))
                    self._turn.attributes["gen_ai.input.messages"] = message_json

    def _start_turn(self, event: Event, at: int) -> None:
        if self._turn is not None:
            self._turn.end = max(self._turn.end, at)
        named = self._span(
            f"turn/{event.seq}",
            self._root.id,
            self._agent_span_name,
            at,
            dict(self._agent_attributes),
        )
        self._turn = named

    def _current_turn(self, event: Event, at: int) -> OtelSpan:
        """Return the current turn; start one if no user message came before."""
        if self._turn is None:
            self._start_turn(event, at)
        assert self._turn is not None
        self._turn.end = max(self._turn.end, at)
        return self._turn

    def _model(self, event: Event, data: dict[str, Any], at: int) -> None:
        turn = self._current_turn(event, at)
        model, provider = str(data.get("model", "")), str(data.get("provider", ""))
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider or "_OTHER",
            "gen_ai.request.model": model,
            "gen_ai.conversation.id": self._id,
            **_usage(data.get("usage")),
        }
        start = min(self._last_request_ns or at, at)
        span = self._span(f"chat/{event.seq}", turn.id, f"chat {model}".strip(), start, attributes)
        span.kind, span.end = _CLIENT, at
        self._last_request_ns = at

    def _tool(self, event: Event, id_: str, *, name: str, arguments: Any, at: int) -> None:
        turn = self._current_turn(event, at)
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": id_,
            "gen_ai.conversation.id": self._id,
        }
        if self._content and arguments is not None:
            attributes["gen_ai.tool.call.arguments"] = to_json(arguments)
        word = f"execute_tool {name}".strip()
        self._open_tools[id_] = self._span(f"tool/{event.seq}/{id_}", turn.id, word, at, attributes)

    def _end(self, id_: str, at: int, result: Any, *, error: str) -> None:
        span = self._open_tools.pop(id_, None)
        if span is None:
            return
        span.end, span.error = max(span.start, at), error
        if error:
            span.attributes["error.type"] = "tool_error"
        if self._content and result is not None:
            span.attributes["gen_ai.tool.call.result"] = to_json(result)

    def _span(
        self, key: str, parent: str, name: str, start: int, attributes: dict[str, Any]
    ) -> OtelSpan:
        id_ = _hash(f"{self._id}/{key}", 8)
        span = OtelSpan(id_, parent, name, _INTERNAL, start, start, attributes)
        self._spans.append(span)
        return span


def _usage(usage: Any) -> dict[str, int]:
    """Map token counts to attributes; tokens read from or written to a cache count as input."""
    if not isinstance(usage, dict):
        return {}
    counts = {name: value for name, value in usage.items() if type(value) is int and value >= 0}
    attributes: dict[str, int] = {}
    for names, direction in ((_INPUT, "input"), (_OUTPUT, "output")):
        if known := [counts[name] for name in names if name in counts]:
            attributes[f"gen_ai.usage.{direction}_tokens"] = known[0]
    for name, attribute in _CACHE_TOKEN_ATTRIBUTES.items():
        if name in counts:
            attributes[attribute] = counts[name]
            key = "gen_ai.usage.input_tokens"
            attributes[key] = attributes.get(key, 0) + counts[name]
    return attributes


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


def _call_arguments(message: Message, id_: str) -> Any:
    if (part := _part(message, "tool_use", "id", id_)) is not None:
        return part.get("input")
    for call in message.extra.get("tool_calls") or ():
        if isinstance(call, dict) and call.get("id") == id_:
            function = call.get("function")
            return function.get("arguments") if isinstance(function, dict) else call.get("args")
    return None


def _message_json(role: str, text: str) -> str:
    return to_json([{"role": role, "parts": [{"type": "text", "content": text}]}])


def _hash(text: str, size: int) -> str:
    return blake2b(text.encode(), digest_size=size).hexdigest()


def _span_json(span: OtelSpan, trace: str) -> dict[str, Any]:
    fields = {
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
    return {key: value for key, value in fields.items() if key != "parentSpanId" or value}


def _attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    """Encode one attribute value; OTLP JSON writes 64-bit integers as strings."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": str(value)}
