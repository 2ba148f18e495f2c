"""A process of its own that asks an agent, and waits in the middle of a tool."""

from __future__ import annotations

import sys

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

import ortet
from ortet.integrations.pydantic_ai import OrtetHistory


def main(store: str) -> None:
    agent = Agent(TestModel())

    @agent.tool_plain
    def look(city: str) -> str:
        sys.stdout.write(f"looking at {city}\n")
        sys.stdout.flush()
        return sys.stdin.readline()

    with ortet.open(store) as hub:
        OrtetHistory("chat", hub).run_sync(agent, "what is it?")


if __name__ == "__main__":
    main(*sys.argv[1:])
