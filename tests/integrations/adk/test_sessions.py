"""OrtetSessionService does what ADK's own services do: each of these runs against them too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.events.event_actions import EventCompaction
from google.adk.sessions import BaseSessionService, InMemorySessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from pydantic import BaseModel

import ortet
from ortet.errors import Invalid
from ortet.hub.hub import Hub
from ortet.integrations.adk import OrtetSessionService
from ortet.integrations.adk.sessions import adk_session_name

ME: dict[str, Any] = {"app_name": "app", "user_id": "ann"}
BOTH = pytest.mark.parametrize("kind", ["ortet", "memory", "sqlite"])
DURABLE = pytest.mark.parametrize("kind", ["ortet", "sqlite"])


@asynccontextmanager
async def service_of(kind: str, hub: Hub, tmp_path: Path) -> AsyncIterator[BaseSessionService]:
    if kind == "ortet":
        yield OrtetSessionService(hub)
    elif kind == "memory":
        yield InMemorySessionService()
    else:
        service = SqliteSessionService(str(tmp_path / "adk.db"))
        yield service
        await service.close()


def event(text: str = "", *, at: float = 0.0, author: str = "user", **given: Any) -> Event:
    role = "user" if author == "user" else "model"
    content = types.Content(role=role, parts=[types.Part(text=text)]) if text else None
    when: dict[str, Any] = {"timestamp": at} if at else {}
    return Event(author=author, invocation_id="i1", content=content, **when, **given)


def delta(**state: Any) -> EventActions:
    return EventActions(state_delta={key.replace("__", ":"): v for key, v in state.items()})


@BOTH
def test_a_session_is_created_found_listed_and_deleted(kind: str, hub: Hub, tmp_path: Path) -> None:
    async def through() -> None:
        async with service_of(kind, hub, tmp_path) as service:
            assert await service.get_session(**ME, session_id="none") is None
            first = await service.create_session(**ME, session_id=" one ", state={"k": 1})
            assert (first.id, first.state, first.events) == ("one", {"k": 1}, [])
            with pytest.raises(AlreadyExistsError):
                await service.create_session(**ME, session_id="one")
            made = await service.create_session(**ME)
            assert made.id
            other = await service.create_session(app_name="app", user_id="bob", session_id="one")
            assert other.state == {}
            await service.append_event(first, event("hello", at=made.last_update_time + 5))
            mine = (await service.list_sessions(**ME)).sessions
            assert [one.id for one in mine] == [made.id, "one"], "the last used comes last"
            assert (mine[1].state, mine[1].events) == ({"k": 1}, [])
            every = (await service.list_sessions(app_name="app")).sessions
            assert {(one.user_id, one.id) for one in every} == {
                ("ann", "one"),
                ("ann", made.id),
                ("bob", "one"),
            }
            assert (await service.list_sessions(app_name="ap")).sessions == []
            assert (await service.list_sessions(app_name="app", user_id="an")).sessions == []
            await service.delete_session(**ME, session_id="one")
            await service.delete_session(**ME, session_id="one")
            assert await service.get_session(**ME, session_id="one") is None
            assert len((await service.list_sessions(**ME)).sessions) == 1
            again = await service.create_session(**ME, session_id="one")
            assert (again.state, again.events) == ({}, [])

    asyncio.run(through())


@BOTH
def test_state_of_app_and_user_is_shared_and_of_the_run_is_not_kept(
    kind: str, hub: Hub, tmp_path: Path
) -> None:
    async def through() -> None:
        async with service_of(kind, hub, tmp_path) as service:
            given = {"app:a": 1, "user:u": [1], "temp:t": 0, "own": "x"}
            first = await service.create_session(**ME, session_id="s1", state=given)
            assert first.state == {"app:a": 1, "user:u": [1], "own": "x"}
            change = event("", actions=delta(app__a=2, user__v={"deep": None}, temp__t=1, own=None))
            told = await service.append_event(first, change)
            assert first.state == {
                "app:a": 2,
                "user:u": [1],
                "user:v": {"deep": None},
                "temp:t": 1,
                "own": None,
            }
            assert "temp:t" not in told.actions.state_delta
            second = await service.create_session(**ME, session_id="s2")
            assert second.state == {"app:a": 2, "user:u": [1], "user:v": {"deep": None}}
            others = await service.create_session(app_name="app", user_id="bob")
            assert others.state == {"app:a": 2}
            strange = await service.create_session(app_name="another", user_id="ann")
            assert strange.state == {}
            found = await service.get_session(**ME, session_id="s1")
            assert found is not None
            assert found.state == {**second.state, "own": None}
            assert await service.get_user_state(**ME) == {"u": [1], "v": {"deep": None}}
            assert await service.get_user_state(app_name="app", user_id="nobody") == {}
            await service.delete_session(**ME, session_id="s1")
            assert (await service.get_user_state(**ME))["u"] == [1]

    asyncio.run(through())


@BOTH
def test_get_session_returns_only_the_requested_events(kind: str, hub: Hub, tmp_path: Path) -> None:
    async def through() -> None:
        async with service_of(kind, hub, tmp_path) as service:
            session = await service.create_session(**ME, session_id="s")
            start = session.last_update_time + 1
            for number in range(5):
                await service.append_event(session, event(f"e{number}", at=start + number))

            async def texts(**config: Any) -> list[str]:
                found = await service.get_session(
                    **ME, session_id="s", config=GetSessionConfig(**config)
                )
                assert found is not None
                assert found.last_update_time == start + 4
                parts = [one.content.parts for one in found.events if one.content]
                return [part[0].text or "" for part in parts if part]

            assert await texts() == ["e0", "e1", "e2", "e3", "e4"]
            assert await texts(num_recent_events=2) == ["e3", "e4"]
            assert await texts(num_recent_events=0) == []
            assert await texts(num_recent_events=50) == ["e0", "e1", "e2", "e3", "e4"]
            assert await texts(after_timestamp=start + 3) == ["e3", "e4"]
            assert await texts(after_timestamp=start + 1, num_recent_events=3) == ["e2", "e3", "e4"]
            assert await texts(after_timestamp=start + 3, num_recent_events=1) == ["e4"]

    asyncio.run(through())


@BOTH
def test_parts_of_a_stream_are_not_kept(kind: str, hub: Hub, tmp_path: Path) -> None:
    async def through() -> None:
        async with service_of(kind, hub, tmp_path) as service:
            session = await service.create_session(**ME, session_id="s")
            part = event("hel", partial=True, actions=delta(k=1))
            assert await service.append_event(session, part) is part
            assert (session.events, session.state) == ([], {})
            found = await service.get_session(**ME, session_id="s")
            assert found is not None
            assert (found.events, found.state) == ([], {})

    asyncio.run(through())


@BOTH
def test_append_to_a_missing_session_is_refused(kind: str, hub: Hub, tmp_path: Path) -> None:
    async def through() -> None:
        async with service_of(kind, hub, tmp_path) as service:
            session = Session(id="never", **ME)
            with pytest.raises(SessionNotFoundError):
                await service.append_event(session, event("x"))
            session = await service.create_session(**ME, session_id="s")
            await service.delete_session(**ME, session_id="s")
            with pytest.raises(SessionNotFoundError):
                await service.append_event(session, event("x"))

    asyncio.run(through())


@DURABLE
def test_append_to_a_stale_session_is_refused(kind: str, hub: Hub, tmp_path: Path) -> None:
    async def through() -> None:
        async with service_of(kind, hub, tmp_path) as service:
            ours = await service.create_session(**ME, session_id="s")
            theirs = await service.get_session(**ME, session_id="s")
            assert theirs is not None
            at = ours.last_update_time
            await service.append_event(ours, event("first", at=at + 1))
            await service.append_event(ours, event("second", at=at + 2))
            with pytest.raises(StaleSessionError):
                await service.append_event(theirs, event("lost", at=at + 3))
            again = await service.get_session(**ME, session_id="s")
            assert again is not None
            await service.append_event(again, event("third", at=at + 4))
            assert len(again.events) == 3

    asyncio.run(through())


def test_a_stale_session_is_detected_without_help_of_clocks(hub: Hub) -> None:
    """Two events of one moment: a time is no revision (adk-python #4751)."""

    async def through() -> None:
        service = OrtetSessionService(hub)
        ours = await service.create_session(**ME, session_id="s")
        theirs = await service.get_session(**ME, session_id="s")
        assert theirs is not None
        at = ours.last_update_time
        await service.append_event(ours, event("first", at=at))
        with pytest.raises(StaleSessionError):
            await service.append_event(theirs, event("of the same moment", at=at))
        await service.append_event(ours, event("of an earlier one", at=at - 100))
        await service.append_event(ours, event("and on", at=at + 1))
        bare = Session(id="s", **ME, last_update_time=at)  # made by hand, without a marker
        with pytest.raises(StaleSessionError):
            await service.append_event(bare, event("x"))
        bare.events = list(ours.events)
        await service.append_event(bare, event("it knows the last one", at=at + 2))
        with pytest.raises(StaleSessionError):
            await service.append_event(ours, event("x"))

    asyncio.run(through())


def test_an_event_delivered_twice_is_stored_once(hub: Hub) -> None:
    async def through() -> None:
        service = OrtetSessionService(hub)
        session = await service.create_session(**ME, session_id="s")
        one = event("once", actions=delta(n=1))
        await service.append_event(session, one)
        await service.append_event(session, one.model_copy(deep=True))
        same_id = one.model_copy(deep=True)
        same_id.author = "agent"
        await service.append_event(session, same_id)
        found = await service.get_session(**ME, session_id="s")
        assert found is not None
        assert [one.author for one in found.events] == ["user", "agent"]

    asyncio.run(through())


class Point(BaseModel):
    x: int = 1


EVENTS = [
    event("plain"),
    event("by an agent", author="planner", branch="root.planner", turn_complete=True),
    event("", actions=delta(a=None, b=2.0, c={"d": [None, "é"]})),
    Event(author="", invocation_id=""),
    Event(author="user", content=types.Content(parts=[types.Part(text="no role")])),
    Event(author="a", content=types.Content(role="system", parts=[types.Part(text="odd role")])),
    Event(author="a", content=types.Content(role="model", parts=[])),
    Event(
        author="a",
        content=types.Content(
            role="model",
            parts=[
                types.Part(text="think", thought=True, thought_signature=b"\x00\xff"),
                types.Part(function_call=types.FunctionCall(id="c", name="f", args={"n": 1})),
                types.Part(function_call=types.FunctionCall(name="no id")),
                types.Part(inline_data=types.Blob(mime_type="image/png", data=b"\x89\x00\xff")),
            ],
        ),
        long_running_tool_ids={"c", "b"},
        usage_metadata=types.GenerateContentResponseUsageMetadata(total_token_count=7),
        custom_metadata={"deep": {"none": None}},
    ),
    Event(
        author="a",
        content=types.Content(
            role="user",
            parts=[
                types.Part(
                    function_response=types.FunctionResponse(id="c", name="f", response={"r": [1]})
                )
            ],
        ),
        actions=EventActions(
            artifact_delta={"x": 1}, transfer_to_agent="b", escalate=True, skip_summarization=False
        ),
    ),
    Event(
        author="user",
        actions=EventActions(
            compaction=EventCompaction(
                start_timestamp=1.0,
                end_timestamp=2.0,
                compacted_content=types.Content(role="model", parts=[types.Part(text="sum")]),
            )
        ),
    ),
    event("big number", custom_metadata={"n": 2**80}),
    event("half \ud83d"),
    event("large", custom_metadata={"blob": "x" * 3_000_000}),
    event("", actions=delta(huge="y" * 2_000_000)),
    event("", output={"o": [1, None]}, node_path="wf/A@1"),
]


@pytest.mark.parametrize("given", EVENTS, ids=range(len(EVENTS)))
def test_every_event_survives_store_and_load_unchanged(hub: Hub, given: Event) -> None:
    async def through() -> None:
        service = OrtetSessionService(hub)
        session = await service.create_session(**ME, session_id="s")
        await service.append_event(session, given.model_copy(deep=True))
        with ortet.open(hub.root) as other:
            found = await OrtetSessionService(other).get_session(**ME, session_id="s")
        assert found is not None
        assert found.events == [given]
        assert found.state == given.actions.state_delta

    asyncio.run(through())


def test_the_conversation_is_one_for_everybody(hub: Hub) -> None:
    async def through() -> None:
        service = OrtetSessionService(hub)
        session = await service.create_session(**ME, session_id="s", state={"k": 1})
        await service.append_event(session, event("where do the herons nest?"))
        call, result = EVENTS[7].model_copy(deep=True), EVENTS[8].model_copy(deep=True)
        await service.append_event(session, call)
        await service.append_event(session, result)
        await service.append_event(session, event("on the island", author="guide"))

    asyncio.run(through())
    view = hub.get(adk_session_name("app", "ann", "s"))
    said = view.messages()
    assert [one.role for one in said] == ["user", "assistant", "user", "assistant"]
    assert (said[0].content, said[3].content) == ("where do the herons nest?", "on the island")
    assert said[3].extra["name"] == "guide"
    assert said[1].content[1]["type"] == "tool_use"
    assert view.recall("herons")[0].text == "where do the herons nest?"
    hub.verify()


@pytest.mark.parametrize("value", [object(), len, b"\xff", {"deep": [lambda: 1]}])
def test_a_value_that_cannot_be_kept_is_named(hub: Hub, value: Any) -> None:
    async def through() -> None:
        service = OrtetSessionService(hub)
        with pytest.raises(Invalid, match="'bad'"):
            await service.create_session(**ME, session_id="s", state={"ok": 1, "bad": value})
        assert await service.get_session(**ME, session_id="s") is None
        session = await service.create_session(**ME, session_id="s")
        with pytest.raises(Invalid, match="'user:bad'"):
            await service.append_event(session, event("", actions=delta(ok=1, user__bad=value)))
        found = await service.get_session(**ME, session_id="s")
        assert found is not None
        assert (found.events, found.state) == ([], {})

    asyncio.run(through())


@BOTH
def test_state_values_known_to_pydantic_are_stored_as_json(
    kind: str, hub: Hub, tmp_path: Path
) -> None:
    async def through() -> None:
        async with service_of(kind, hub, tmp_path) as service:
            given = {"point": Point(), "when": datetime(2026, 1, 2), "pair": (1, 2)}  # noqa: DTZ001
            session = await service.create_session(**ME, session_id="s", state=given)
            await service.append_event(session, event("x"))
            found = await service.get_session(**ME, session_id="s")
            assert found is not None
            if kind != "memory":
                told = {"point": {"x": 1}, "when": "2026-01-02T00:00:00", "pair": [1, 2]}
                assert found.state == told

    asyncio.run(through())


@pytest.mark.parametrize(
    "odd", ["../../etc", "a/b", "7", "ключ", "x" * 3000, "user:me", "a\nb", "-"]
)
def test_ids_are_any_text(hub: Hub, odd: str) -> None:
    async def through() -> None:
        service = OrtetSessionService(hub)
        ids: dict[str, Any] = {"app_name": odd, "user_id": odd}
        await service.create_session(**ids, session_id=odd, state={"app:k": 1, "user:k": 2})
        await service.create_session(app_name=odd + "2", user_id=odd, session_id=odd)
        (found,) = (await service.list_sessions(**ids)).sessions
        assert (found.app_name, found.user_id, found.id) == (odd, odd, odd)
        assert len((await service.list_sessions(app_name=odd)).sessions) == 1
        assert found.state == {"app:k": 1, "user:k": 2}
        await service.delete_session(**ids, session_id=odd)
        assert (await service.list_sessions(**ids)).sessions == []

    asyncio.run(through())


@pytest.mark.parametrize("bad", ["", "\ud800", 5, None])
def test_an_invalid_user_id_is_refused(hub: Hub, bad: Any) -> None:
    with pytest.raises(Invalid, match="user_id"):
        asyncio.run(OrtetSessionService(hub).create_session(app_name="app", user_id=bad))


def test_a_vault_secret_in_events_or_state_is_never_stored(hub: Hub, tmp_path: Path) -> None:
    secret = "swordfish-4711-swordfish"
    hub.vault.put("door", secret)

    async def through() -> None:
        service = OrtetSessionService(hub)
        session = await service.create_session(**ME, session_id="s", state={"app:a": secret})
        said = event(secret, actions=delta(user__u=[secret], k={"deep": secret}))
        await service.append_event(session, said)
        large = event(secret, custom_metadata={"blob": "x" * 2_000_000})
        await service.append_event(session, large)
        found = await service.get_session(**ME, session_id="s")
        assert found is not None
        assert secret not in found.model_dump_json()
        assert "door" in found.model_dump_json()

    asyncio.run(through())
    hub.close()
    stored = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert not any(secret.encode() in path.read_bytes() for path in stored)


def test_a_fork_goes_on_by_itself(hub: Hub) -> None:
    async def through() -> None:
        service = OrtetSessionService(hub)
        session = await service.create_session(**ME, session_id="s", state={"k": 1})
        for number in range(60):
            await service.append_event(session, event(f"e{number}", actions=delta(n=number)))
        copy = await service.fork_session(**ME, session_id="s", new_id="t")
        assert (copy.id, copy.state, len(copy.events)) == ("t", {"k": 1, "n": 59}, 60)
        await service.append_event(copy, event("only there", actions=delta(n=99)))
        await service.append_event(session, event("only here"))
        found = [await service.get_session(**ME, session_id=id_) for id_ in ("s", "t")]
        assert [one.state["n"] for one in found if one] == [59, 99]
        assert [one.id for one in (await service.list_sessions(**ME)).sessions] == ["t", "s"]
        with pytest.raises(AlreadyExistsError):
            await service.fork_session(**ME, session_id="s", new_id="t")
        with pytest.raises(SessionNotFoundError):
            await service.fork_session(**ME, session_id="never")

    asyncio.run(through())
    view = hub.get(adk_session_name("app", "ann", "t"))
    assert sum(event.timeline == view.internals.row.timeline for event in view.events()) <= 4


def test_a_closed_service_can_be_replaced_on_the_same_hub(hub: Hub) -> None:
    service = OrtetSessionService(hub)
    asyncio.run(service.create_session(**ME, session_id="s"))
    service.close()
    with pytest.raises(Invalid, match="closed"):
        asyncio.run(service.get_session(**ME, session_id="s"))
    again = OrtetSessionService(hub)
    assert asyncio.run(again.get_session(**ME, session_id="s")) is not None


def test_a_session_restored_in_ortet_shows_its_earlier_state(hub: Hub) -> None:
    async def begin() -> Session:
        service = OrtetSessionService(hub)
        session = await service.create_session(**ME, session_id="s", state={"k": 1})
        await service.append_event(session, event("one", actions=delta(k=2)))
        service.close()
        return session

    session = asyncio.run(begin())
    with hub.session(adk_session_name("app", "ann", "s")) as ours:
        point = ours.commit("here")
    with ortet.open(hub.root) as other:
        two = OrtetSessionService(other).append_event(session, event("two", actions=delta(k=3)))
        asyncio.run(two)
    with hub.session(adk_session_name("app", "ann", "s")) as ours:
        ours.restore(point.oid)
    with ortet.open(hub.root) as other:
        service = OrtetSessionService(other)
        found = asyncio.run(service.get_session(**ME, session_id="s"))
        assert found is not None
        assert (found.state, len(found.events)) == ({"k": 2}, 1)
        with pytest.raises(StaleSessionError):
            asyncio.run(service.append_event(session, event("three")))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_has_not_is_refused_with_its_place(number: float, hub: Hub) -> None:
    async def through() -> None:
        service = OrtetSessionService(hub)
        session = await service.create_session(**ME, session_id="s")
        call = types.Part(function_call=types.FunctionCall(name="f", args={"deep": [1, number]}))
        content = types.Content(role="model", parts=[types.Part(text="so"), call])
        with pytest.raises(Invalid, match=r"parts\[1\]\.function_call\.args\.deep\[1\]"):
            await service.append_event(session, Event(author="bot", content=content))
        with pytest.raises(Invalid, match=r"custom_metadata\.score"):
            await service.append_event(session, event("so", custom_metadata={"score": number}))
        measured = event("said", author="bot", avg_logprobs=number, custom_metadata={"score": None})
        await service.append_event(session, measured)
        found = await service.get_session(**ME, session_id="s")
        assert found is not None
        assert [one.content.parts[0].text for one in found.events if one.content] == ["said"]  # type: ignore[index]

    asyncio.run(through())
