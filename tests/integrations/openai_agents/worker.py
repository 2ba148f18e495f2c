"""A process of its own that uses a session; it is told what to do by its arguments."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from agents import Runner, set_tracing_disabled
from tests.integrations.openai_agents.model import agent

import ortet
from ortet.integrations.openai_agents import OrtetSession


def pair(who: str, number: int) -> list[Any]:
    id_ = f"{who}{number}"
    return [
        {"role": "user", "content": f"{who} {number}"},
        {"type": "function_call", "call_id": id_, "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": id_, "output": id_},
    ]


def tell(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def add(session: OrtetSession, who: str, count: str) -> None:
    """Says so after each: what was told to be stored has to be there."""
    for number in range(int(count)):
        await session.add_items(pair(who, number))
        tell(f"{who} {number}")


async def turns(session: OrtetSession) -> None:
    """One for each question that it reads."""
    for question in sys.stdin:
        result = await Runner.run(agent()[0], question.strip(), session=session)
        await session.store_run_usage(result)
        tell(str(result.final_output))


async def half(session: OrtetSession) -> None:
    """Waits to be killed between a call and its result."""
    call: Any = {"type": "function_call", "call_id": "lost", "name": "look", "arguments": "{}"}
    await session.add_items([{"role": "user", "content": "what is it?"}])
    await session.add_items([call])
    tell("half")
    sys.stdin.readline()


_VERBS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "add": add,
    "turns": turns,
    "half": half,
}


def main(store: str, id_: str, verb: str, *rest: str) -> None:
    set_tracing_disabled(True)
    with ortet.open(store) as hub:
        asyncio.run(_VERBS[verb](OrtetSession(id_, hub), *rest))


if __name__ == "__main__":
    main(*sys.argv[1:])
