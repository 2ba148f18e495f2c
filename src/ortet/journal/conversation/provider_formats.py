"""A conversation made fit for a model API: the parts of one answer together, each call with its one
result behind it, and pictures as that API takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from ortet.journal.conversation.text import text_of
from ortet.journal.conversation.tool_calls import calls_of, groups, lost, results_of, settled
from ortet.journal.state.records import Call, Message

_DATA = "data:"
_BASE64 = ";base64,"
_NEEDS = {"text": "text", "tool_use": "id", "tool_result": "tool_use_id", "thinking": "thinking"}
"""What a part of each kind cannot be without, as text."""
_OF_USE = ("type", "id", "name", "cache_control")
_OF_RESULT = ("type", "tool_use_id", "is_error", "cache_control")
"""What calls and results may have there beside what they say: more is refused."""
_SPOKEN = ("system", "developer", "user", "assistant", "tool")

Part = Callable[[dict[str, Any]], dict[str, Any]]


def fit(messages: Iterable[Message], part: Part) -> list[Message]:
    """`part` makes a part of a content one that the API takes."""
    whole = groups(settled(list(_joined(map(_in_role, messages)))))
    closed = _closed([message for group in whole for message in group])
    return [_spoken(replace(one, content=_content(one.content, part))) for one in closed]


def _in_role(message: Message) -> Message:
    """Only an assistant calls, and nobody answers itself: what says otherwise is text."""
    other = "tool_result" if message.role == "assistant" else "tool_use"
    content = message.content
    if not isinstance(content, list) or not any(_is(part, other) for part in content):
        return message
    told = [{"type": "text", "text": text_of([p])} if _is(p, other) else p for p in content]
    return replace(message, content=told)


def _is(part: Any, kind: str) -> bool:
    return isinstance(part, dict) and part.get("type") == kind


def _joined(messages: Iterable[Message]) -> Iterator[Message]:
    """Parts of one answer were recorded as they came, with results between them: `extra.id` tells
    which belong together. An API wants them in one message."""
    waiting: Message | None = None
    between: list[Message] = []
    for message in messages:
        if message.role != "assistant":
            if results_of(message):
                between.append(message)
                continue
        elif waiting is not None and _is_one_answer(waiting, message):
            waiting = replace(waiting, content=[*_parts(waiting), *_parts(message)])
            continue
        if waiting is not None:
            yield waiting
        yield from between
        waiting, between = None, []
        if message.role == "assistant":
            waiting = message
        else:
            yield message
    if waiting is not None:
        yield waiting
    yield from between


def _is_one_answer(first: Message, second: Message) -> bool:
    id_ = first.extra.get("id")
    apart = "tool_calls" in first.extra or "tool_calls" in second.extra
    return isinstance(id_, str) and id_ == second.extra.get("id") and not apart


def _parts(message: Message) -> list[Any]:
    content = message.content
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": text_of(content)}] if content else []


def _closed(messages: Sequence[Message]) -> Iterator[Message]:
    """Each call once, and each with one result right behind it."""
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        calls = {call.id: call for call in calls_of(message)}
        yield _once(message, "id", set()) if calls else message
        if not calls:
            continue
        while at < len(messages) and results_of(messages[at]):
            yield from _answering(messages[at], calls)
            at += 1
        for call in calls.values():
            yield _made_up(call)


def _answering(message: Message, calls: dict[str, Call]) -> Iterator[Message]:
    """What of it answers calls that still wait, which are done then."""
    news = [id_ for id_ in results_of(message) if id_ in calls]
    if message.role == "tool" and not news:
        return
    others = {id_ for id_ in results_of(message) if id_ not in calls}
    for id_ in news:
        calls.pop(id_, None)
    yield _once(message, "tool_use_id", others)


def _once(message: Message, name: str, gone: set[str]) -> Message:
    """Without parts whose id was there before, or is of those that are `gone`."""
    if not isinstance(message.content, list):
        return message
    seen, kept = set(gone), list[Any]()
    for part in message.content:
        id_ = part.get(name) if isinstance(part, dict) else None
        is_one = isinstance(part, dict) and part.get("type") in ("tool_use", "tool_result")
        if is_one and isinstance(id_, str):
            if id_ in seen:
                continue
            seen.add(id_)
        kept.append(part)
    return replace(message, content=kept)


def _made_up(call: Call) -> Message:
    data = lost(call, "").data
    return Message(0, data["role"], data["content"], 0, data["extra"])


def _spoken(message: Message) -> Message:
    """Who speaks, as APIs know them: others are users with a name."""
    return message if message.role in _SPOKEN else replace(message, role="user")


def _content(content: Any, part: Part) -> Any:
    """A session takes any content, an API text and parts that it knows."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        return text_of(content)
    return [part(_sound(one)) for one in content]


def _sound(part: Any) -> dict[str, Any]:
    """What is no part is text."""
    kind = part.get("type") if isinstance(part, dict) else None
    needs = _NEEDS.get(kind) if isinstance(kind, str) else None
    if not isinstance(kind, str) or (needs is not None and not isinstance(part.get(needs), str)):
        return {"type": "text", "text": text_of(part)}
    if kind == "tool_use":
        return {**part, "name": str(part.get("name") or "tool")}
    return dict(part)


def for_chat(part: dict[str, Any]) -> dict[str, Any]:
    """Pictures by their address, or their data as one."""
    source = part.get("source")
    if part.get("type") == "image" and isinstance(source, dict):
        url = source.get("url")
        if source.get("type") == "base64":
            url = f"{_DATA}{source.get('media_type', '')}{_BASE64}{source.get('data', '')}"
        return {"type": "image_url", "image_url": {"url": str(url)}}
    if part.get("type") in ("text", "image_url", "tool_use", "tool_result", "input_audio", "file"):
        return part
    return {"type": "text", "text": text_of([part])}


def _result(content: Any) -> dict[str, Any]:
    """Frameworks have results that are neither text nor parts."""
    are_parts = isinstance(content, list) and all(
        isinstance(one, dict) and isinstance(one.get("type"), str) for one in content
    )
    return {"content": content if are_parts else text_of(content)}


def for_parts(part: dict[str, Any]) -> dict[str, Any]:
    """Pictures by their address, or their data."""
    kind = part["type"]
    if kind == "tool_use":
        given = part.get("input")
        told = given if isinstance(given, dict) else {"input": given}
        return {key: part[key] for key in _OF_USE if key in part} | {"input": told}
    if kind == "tool_result":
        return {key: part[key] for key in _OF_RESULT if key in part} | _result(part.get("content"))
    if kind != "image_url":
        return part
    given = part.get("image_url")
    url = str(given.get("url", "")) if isinstance(given, dict) else str(given)
    head, found, data = url.partition(_BASE64)
    source = {"type": "url", "url": url}
    if found and head.startswith(_DATA):
        source = {"type": "base64", "media_type": head.removeprefix(_DATA), "data": data}
    return {"type": "image", "source": source}
