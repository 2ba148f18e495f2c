"""Tool calls and their results, in the two formats of model APIs.

APIs refuse a conversation in which a call has no result directly after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ortet.journal.events import Draft
from ortet.journal.state.records import Message, ToolCall

_ARRAYS = (list, tuple)
LOST_RESULT_TEXT = (
    "No result: the process ended before this call did. It may or may not have been done."
)


def calls_of(message: Message) -> list[ToolCall]:
    """Return the tool calls of a message: `extra.tool_calls`, or parts of type `tool_use`."""
    if message.role != "assistant":
        return []
    calls = [
        ToolCall(call["id"], _name(call))
        for call in _dicts(_extra(message, "tool_calls"))
        if isinstance(call.get("id"), str)
    ]
    calls += [
        ToolCall(part["id"], _name(part), part=True)
        for part in _dicts(message.content)
        if part.get("type") == "tool_use" and isinstance(part.get("id"), str)
    ]
    return calls


def results_of(message: Message) -> list[str]:
    """Return the call ids that a message answers: `extra.tool_call_id`, or `tool_result` parts."""
    call_id = _extra(message, "tool_call_id")
    call_ids = [call_id] if message.role == "tool" and isinstance(call_id, str) else []
    call_ids += [
        part["tool_use_id"]
        for part in _dicts(message.content)
        if part.get("type") == "tool_result" and isinstance(part.get("tool_use_id"), str)
    ]
    return call_ids


def unanswered_calls(pending: Sequence[ToolCall], message: Message) -> list[ToolCall]:
    """Return the calls without a result after this message.

    A message of the assistant replaces all earlier calls.
    """
    if message.role == "assistant":
        return calls_of(message)
    answered = results_of(message) if pending else []
    return [call for call in pending if call.id not in answered]


def lost_result(call: ToolCall, actor: str) -> Draft:
    """Return a synthetic result for a call that a crash interrupted."""
    extra: dict[str, Any] = {"synthetic": True}
    if call.part:
        part = {
            "type": "tool_result",
            "tool_use_id": call.id,
            "content": LOST_RESULT_TEXT,
            "is_error": True,
        }
        return Draft("message", {"role": "user", "content": [part], "extra": extra}, actor)
    extra |= {"tool_call_id": call.id, "name": call.name}
    return Draft("message", {"role": "tool", "content": LOST_RESULT_TEXT, "extra": extra}, actor)


def without_obsolete_results(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without synthetic results that a real result has replaced."""
    return list(without_obsolete_results_newest_first(reversed(messages)))[::-1]


def without_obsolete_results_newest_first(newest: Iterable[Message]) -> Iterator[Message]:
    """Filter synthetic results as `without_obsolete_results` does, from newest to oldest."""
    real: set[str] = set()
    for message in newest:
        ids = results_of(message)
        if _is_synthetic(message) and ids and real.issuperset(ids):
            continue
        yield message
        real.update(ids)
        # an id can be used again by an earlier call
        real.difference_update(call.id for call in calls_of(message))


def group_messages(messages: Sequence[Message]) -> list[list[Message]]:
    """Group messages that must stay together: a call with its results, or one message.

    Results are placed directly after their call. A result without its call is left out.
    """
    call_indexes: dict[str, int] = {}
    reach: list[int] = []  # index of the first message that each one belongs with
    for at, message in enumerate(messages):
        answered = results_of(message)
        indexes = [call_indexes[id_] for id_ in answered if id_ in call_indexes]
        reach.append(min(indexes) if indexes else -1 if answered else at)
        for call in calls_of(message):
            call_indexes[call.id] = at
    groups: list[list[Message]] = []
    low = len(messages)
    group: list[Message] = []
    for at in range(len(messages) - 1, -1, -1):
        if reach[at] >= 0:
            low = min(low, reach[at])
            group.append(messages[at])
        if at <= low and group:
            groups.append(list(_order_group(group[::-1])))
            group, low = [], at
    return groups[::-1]


def _order_group(group: Sequence[Message]) -> Iterator[Message]:
    """Yield each call with its results directly after it, before messages in between."""
    if len(group) == 1:
        yield group[0]
        return
    results = [message for message in group if results_of(message)]
    placed: set[int] = set()
    for message in group:
        if message.seq in placed:
            continue
        yield message
        ids = {call.id for call in calls_of(message)}
        for result in results:
            if result.seq not in placed and ids.intersection(results_of(result)):
                placed.add(result.seq)
                yield result


def _is_synthetic(message: Message) -> bool:
    return _extra(message, "synthetic") is True


def _extra(message: Message, key: str) -> Any:
    return message.extra.get(key) if isinstance(message.extra, dict) else None


def _dicts(value: Any) -> Iterable[dict[str, Any]]:
    if not isinstance(value, _ARRAYS):
        return ()
    return [item for item in value if isinstance(item, dict)]


def _name(call: dict[str, Any]) -> str:
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else call.get("name")
    return name if isinstance(name, str) else ""
