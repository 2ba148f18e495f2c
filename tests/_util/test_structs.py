"""Types that are decoded to: safe in threads, and no decoding goes past that."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import msgspec

import ortet
from ortet._util.structs import describe_properties

SOURCE = Path(ortet.__file__).parent
_THREADS = """
import os, sys, threading, types
import msgspec
from ortet._util.structs import thread_safe_struct

sys.setswitchinterval(1e-6)
TEXT = '''
from __future__ import annotations
import msgspec
class Part(msgspec.Struct):
    a: int
    b: str | None
    c: dict[str, list[int]]
class Whole(msgspec.Struct):
    one: Part
    many: list[Part]
'''
part = {"a": 1, "b": None, "c": {"k": [1]}}
raw = msgspec.json.encode({"one": part, "many": [part]})

def use(kind, begin):
    begin.wait()
    assert msgspec.json.decode(raw, type=thread_safe_struct(kind)).many[0].a == 1

for number in range(400):
    module = sys.modules["fresh"] = types.ModuleType("fresh")
    exec(TEXT, module.__dict__)
    begin = threading.Barrier(4)
    all_ = [threading.Thread(target=use, args=(module.Whole, begin)) for _ in range(4)]
    for one in all_:
        one.start()
    if number % 40 == 0:
        child = os.fork()
        if not child:
            begin = threading.Barrier(1)
            use(module.Whole, begin)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    for one in all_:
        one.join()
"""


def test_threads_can_decode_a_new_type_at_the_same_time() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _THREADS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr  # a crash of msgspec is -SIGSEGV


def test_every_decode_call_uses_known_types() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{call.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.name != "structs.py"
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and not _is_safe(call)
    ]
    assert not found, "write thread_safe_struct(TYPE), see ortet._util.structs"


def _is_safe(call: ast.Call) -> bool:
    """Whether it decodes nothing, or to plain values, or to what is known."""
    name = ast.unparse(call.func)
    if not name.startswith("msgspec.") or not name.endswith((".convert", ".decode", "Decoder")):
        return True
    types = [word.value for word in call.keywords if word.arg == "type"]
    types += call.args[1:] if name.endswith("convert") else []
    types += call.args[:1] if name.endswith("Decoder") else []
    return all(
        ast.unparse(one).startswith(("thread_safe_struct(", "dict[str, msgspec.Raw]"))
        for one in types
    )


class Ticket(msgspec.Struct):
    """A ticket.

    It is stored.

    Attributes:
        name: Its name.
        links: Addresses of pages,
            in order.

    See the guide.
    """

    name: str
    links: list[str] = []
    plain: int = 0


def test_descriptions_of_attributes_move_to_their_properties() -> None:
    _, components = msgspec.json.schema_components([Ticket])
    schema = components["Ticket"]
    describe_properties(schema)
    assert schema["description"] == "A ticket.\n\nIt is stored.\n\nSee the guide."
    assert {name: one.get("description") for name, one in schema["properties"].items()} == {
        "name": "Its name.",
        "links": "Addresses of pages, in order.",
        "plain": None,
    }


def test_a_schema_without_a_section_of_attributes_stays_as_it_is() -> None:
    schema = {"description": "A number.", "type": "integer"}
    describe_properties(schema)
    assert schema == {"description": "A number.", "type": "integer"}
