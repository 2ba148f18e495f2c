"""A model that says what it was told to, and remembers what it was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from agents import Agent, Model, ModelResponse, Usage, function_tool
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

Answer = Callable[[list[Any]], list[Any]]
"""What was said so far in, output items out."""


def text(said: str, number: int = 0) -> ResponseOutputMessage:
    part = ResponseOutputText(text=said, type="output_text", annotations=[])
    return ResponseOutputMessage(
        id=f"msg_{number}", content=[part], role="assistant", status="completed", type="message"
    )


def call(id_: str, name: str, arguments: str = "{}") -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        id=f"fc_{id_}", call_id=id_, name=name, arguments=arguments, type="function_call"
    )


class Scripted(Model):
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[list[Any]] = []
        self.ids = True

    async def get_response(
        self, system_instructions: str | None, input: str | list[Any], *_: Any, **__: Any
    ) -> ModelResponse:
        said = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        self.asked.append(said)
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        id_ = f"r{len(self.asked)}" if self.ids else None
        return ModelResponse(output=self.answer(said), usage=usage, response_id=id_)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def weather(said: list[Any]) -> list[Any]:
    """Two calls at once for each question, then an answer."""
    last = said[-1]
    turn = sum(1 for item in said if item.get("role") == "user")
    if last.get("type") == "function_call_output":
        return [text(f"answer {turn}: {last['output']}", turn)]
    return [call(f"c{turn}a", "look", '{"city":"A"}'), call(f"c{turn}b", "look", '{"city":"B"}')]


@function_tool
def look(city: str) -> str:
    """The weather."""
    return f"sun in {city}"


def agent(answer: Answer = weather) -> tuple[Agent[Any], Scripted]:
    model = Scripted(answer)
    return Agent(name="sky", model=model, tools=[look]), model
