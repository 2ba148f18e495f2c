"""Parses LangGraph configurations: thread, namespace and checkpoint.

This is a module of its own because reading and writing both parse configurations.
"""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig

from ortet.errors import Invalid
from ortet.integrations.langgraph.messages import is_text
from ortet.integrations.langgraph.thread import HeadId, PastId


def parse_config(config: RunnableConfig) -> tuple[str, str, str | None]:
    """Return thread id, namespace and checkpoint id."""
    conf = config["configurable"]
    return thread_of(config), conf.get("checkpoint_ns") or "", conf.get("checkpoint_id") or None


def thread_of(config: RunnableConfig) -> str:
    found = config.get("configurable", {}).get("thread_id")
    if found is None:
        raise Invalid("no_thread", 'of which thread? give {"configurable": {"thread_id": …}}')
    return str(found)


def check_text(**texts: object) -> None:
    """Raise Invalid, naming the argument, for text that the journal cannot encode."""
    for key, value in texts.items():
        if isinstance(value, str) and not is_text(value):
            raise Invalid(
                "bad_name", f"{key} {value!r} has half a character in it: give other text", key=key
            )


def strip_id_marks(value: Any) -> Any:
    """Return the value with marked ids replaced by plain strings."""
    if isinstance(value, HeadId | PastId):
        return str(value)
    return (
        {key: strip_id_marks(one) for key, one in value.items()} if type(value) is dict else value
    )
