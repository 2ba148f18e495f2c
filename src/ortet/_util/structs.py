"""What msgspec lacks for Struct types: thread-safe decoding, and described properties in schemas.

It is a module of its own, because each part goes away when msgspec has it.
"""

from __future__ import annotations

import inspect
import os
import re
from threading import RLock
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_prepared_types: set[Any] = set()
_prepare_lock = RLock()
os.register_at_fork(
    before=_prepare_lock.acquire,
    after_in_parent=_prepare_lock.release,
    after_in_child=_prepare_lock.release,
)


def thread_safe_struct(type_: type[T]) -> type[T]:
    """Return `type_` unchanged, after making it safe to decode to from any thread.

    msgspec 0.22 inspects a Struct type at its first use. A second thread that uses the type at the
    same time crashes the process. This function does the inspection once, under a lock.
    """
    if type_ not in _prepared_types:
        with _prepare_lock:
            msgspec.msgpack.Decoder(type_)
            _prepared_types.add(type_)
    return type_


_ATTRIBUTES = re.compile(r"\n*^Attributes:\n((?: {4}.*\n?|\n)+)", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def describe_properties(schema: dict[str, Any]) -> None:
    """Move the section `Attributes:` of a description to the properties that it describes.

    msgspec takes the whole docstring of a Struct as the description of its JSON Schema.
    """
    text = inspect.cleandoc(schema.get("description", ""))
    section = _ATTRIBUTES.search(text)
    if section is None:
        return
    around = text[: section.start()].strip(), text[section.end() :].strip()
    schema["description"] = "\n\n".join(filter(None, around))
    properties = schema.get("properties", {})
    for name, words in _ATTRIBUTE.findall(section[1]):
        if name in properties:
            properties[name] = {**properties[name], "description": " ".join(words.split())}
