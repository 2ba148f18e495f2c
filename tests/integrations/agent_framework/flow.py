"""A workflow of several steps, and a chat client that says what it was told to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_framework import (
    BaseChatClient,
    ChatResponse,
    Executor,
    FunctionInvocationLayer,
    Message,
    UsageDetails,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)

Answer = Callable[[Sequence[Message]], list[Any]]


class Scripted(FunctionInvocationLayer, BaseChatClient):
    """`answer` gives the contents of the next message."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer
        self.asked: list[list[Message]] = []

    async def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **_: Any
    ) -> ChatResponse:
        assert not stream
        self.asked.append(list(messages))
        used = UsageDetails(input_token_count=10, output_token_count=5, total_token_count=15)
        said = Message("assistant", self.answer(messages))
        return ChatResponse(messages=[said], usage_details=used, model="scripted")


@dataclass(frozen=True)
class Order:
    number: int
    steps: tuple[str, ...] = ()


class Step(Executor):
    """Adds its name; one of them waits until it is told to go on."""

    def __init__(self, name: str, *, wait: bool = False) -> None:
        super().__init__(id=name)
        self.count = 0
        self.wait = wait

    @handler
    async def take(self, order: Order, ctx: WorkflowContext[Order, Order]) -> None:
        self.count += 1
        if self.wait:
            sys.stdout.write(f"at {self.id}\n")
            sys.stdout.flush()
            sys.stdin.readline()
        ctx.set_state("last", {"at": self.id, "when": {1, 2}})
        done = Order(order.number, (*order.steps, self.id))
        if self.id == "third":
            await ctx.yield_output(done)
        else:
            await ctx.send_message(done)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"count": self.count}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def workflow(storage: Any, *, wait: bool = False) -> Workflow:
    first, second, third = Step("first"), Step("second", wait=wait), Step("third")
    return (
        WorkflowBuilder(start_executor=first, name="orders", checkpoint_storage=storage)
        .add_edge(first, second)
        .add_edge(second, third)
        .build()
    )
