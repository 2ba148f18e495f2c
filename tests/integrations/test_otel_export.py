"""Sessions as spans of OpenTelemetry, as collectors take them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from tests.integrations.transcripts.written import CONVERSATION, small

from ortet.hub.hub import Hub
from ortet.integrations.otel_export import spans_of
from ortet.integrations.transcripts.importer import import_transcript
from ortet.sessions.reader import SessionReader

KNOWN = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")} | {
    "error.type",
    "ortet.session",
    "ortet.unsettled",
}


def spans(view: SessionReader, *, content: bool = False) -> list[dict[str, Any]]:
    """All of them, each as it must be."""
    told = json.loads(json.dumps(spans_of(view, content=content)))
    (resource,) = told["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    found: list[dict[str, Any]] = scope["spans"]
    ids = {span["spanId"] for span in found}
    assert len(ids) == len(found)
    for span in found:
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"]) and int(span["traceId"], 16)
        assert re.fullmatch("[0-9a-f]{16}", span["spanId"]) and int(span["spanId"], 16)
        assert span.get("parentSpanId", next(iter(ids))) in ids
        assert isinstance(span["startTimeUnixNano"], str)
        assert 0 < int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
        assert {one["key"] for one in span["attributes"]} <= KNOWN
        assert attribute(span, "gen_ai.operation.name") == span["name"].split()[0]
    assert sum("parentSpanId" not in span for span in found) == 1
    return found


def attribute(span: dict[str, Any], key: str) -> Any:
    for one in span["attributes"]:
        if one["key"] == key:
            ((kind, value),) = one["value"].items()
            return int(value) if kind == "intValue" else value
    return None


def test_a_transcript_becomes_agent_chat_and_tool_spans(hub: Hub, tmp_path: Path) -> None:
    path = small().write(tmp_path / f"{CONVERSATION}.jsonl")
    view = hub.get(import_transcript(hub, "claude-code", path)[0].session)
    found = spans(view)
    names = [span["name"] for span in found]
    assert names.count("invoke_agent default") == 2
    assert names.count("chat claude-opus-4-5") == 5
    tools = [span for span in found if span["name"].startswith("execute_tool")]
    assert [attribute(span, "gen_ai.tool.name") for span in tools] == [
        *("Read", "Edit", "Bash", "Bash")
    ]
    assert [span["status"].get("code") for span in tools] == [None, None, 2, None]
    assert tools[0]["startTimeUnixNano"] == "1772442004250000000"
    assert tools[0]["endTimeUnixNano"] == "1772442005250000000"
    chat = next(span for span in found if span["name"].startswith("chat"))
    assert chat["kind"] == 3
    assert attribute(chat, "gen_ai.usage.input_tokens") == 12 + 900 + 4000
    assert attribute(chat, "gen_ai.usage.cache_read.input_tokens") == 4000
    assert "lexer drops" not in json.dumps(found)
    told = json.dumps(spans(view, content=True))
    assert "lexer drops" in told and "1 passed" in told


def test_an_ortet_session_becomes_agent_chat_and_tool_spans(hub: Hub) -> None:
    with hub.session("own", agent="helper") as session:
        session.say("user", "add")
        session.accounting.model_call(
            "openai", "gpt-5", usage={"prompt_tokens": 3, "completion_tokens": 4}
        )
        session.act(max, 1, 2, why="the larger")
        call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        session.say("assistant", None, tool_calls=[call])
        found = spans(session)
    names = [span["name"] for span in found]
    assert sorted(names) == [
        *("chat gpt-5", "execute_tool add", "execute_tool max"),
        *("invoke_agent helper", "invoke_agent helper"),
    ]
    (open_,) = [span for span in found if attribute(span, "ortet.unsettled")]
    assert open_["name"] == "execute_tool add"
    chat = next(span for span in found if span["name"] == "chat gpt-5")
    assert attribute(chat, "gen_ai.usage.output_tokens") == 4
    (turn,) = [span for span in found if span["spanId"] == chat["parentSpanId"]]
    assert "parentSpanId" in turn


def test_an_empty_session_becomes_one_span(hub: Hub) -> None:
    with hub.session("empty") as session:
        assert len(spans(session)) == 1
