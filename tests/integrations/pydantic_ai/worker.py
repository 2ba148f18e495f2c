"""A process of its own that asks an agent, and waits in the middle of a tool."""

from __future__ import annotations

import sys
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

import ortet
from ortet.integrations.pydantic_ai import OrtetHistory


def look(city: str) -> str:
    sys.stdout.write(f"looking at {city}\n")
    sys.stdout.flush()
    return sys.stdin.readline()


def payer(paid: list[int]) -> Agent[None, Any]:
    """Return an agent that looks at once, and pays when it is allowed to."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if not isinstance(messages[-1].parts[-1], UserPromptPart):
            return ModelResponse(parts=[TextPart("that is all")])
        calls = [ToolCallPart("balance", {}, "c1"), ToolCallPart("pay", {"amount": 5}, "c2")]
        return ModelResponse(parts=calls)

    agent: Agent[None, Any] = Agent(FunctionModel(answer), output_type=[str, DeferredToolRequests])

    @agent.tool_plain
    def balance() -> str:
        return "90"

    @agent.tool_plain(requires_approval=True)
    def pay(amount: int) -> str:
        paid.append(amount)
        return look(str(amount)) if __name__ == "__main__" else "paid"

    return agent


def main(store: str, verb: str) -> None:
    with ortet.open(store) as hub:
        chat = OrtetHistory("chat", hub)
        if verb == "look":
            chat.run_sync(Agent(TestModel(), tools=[look]), "what is it?")
        else:
            answers = DeferredToolResults(approvals={"c2": True})
            chat.run_sync(payer([]), deferred_tool_results=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
