"""Tools: functions with typed arguments and results, and their schemas."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.errors import Invalid

if TYPE_CHECKING:
    from ortet.mcp_server.context import McpContext

ProgressReport = Callable[[str], None]
"""Receives progress messages of a long call."""


class Confirmation:
    """A user's agreement: to one thing by its id, to everything, or to nothing yet."""

    def __init__(self, id_: str = "", *, everything: bool = False) -> None:
        self._id = id_
        self._everything = everything

    def allows(self, id_: str) -> bool:
        """Return True if the user agreed to the thing with this id."""
        return self._everything or self._id == id_


_INJECTED_PARAMETERS = ("report", "agreed")
"""Parameters that the server provides, not the client."""


class ToolHints(msgspec.Struct, frozen=True):
    """Properties of a tool that clients are told.

    `confirmed`: the tool acts only after a confirmation.
    """

    reads: bool = False
    destroys: bool = False
    idempotent: bool = False
    outside: bool = False
    confirmed: bool = False


READS = ToolHints(reads=True, idempotent=True)
ADDS = ToolHints()
SETS = ToolHints(idempotent=True)
MOVES = ToolHints(destroys=True, confirmed=True)
CONFIRMED = ToolHints(destroys=True, idempotent=True, confirmed=True)
RUNS = ToolHints(destroys=True, outside=True)


class ToolResult(msgspec.Struct, frozen=True):
    """What a tool gives back: data for programs, and in `str` what a model has to read of it."""


class McpTool:
    """One tool.

    The first parameter of its function is the McpContext; the others are its arguments.
    """

    def __init__(self, function: Callable[..., ToolResult], hints: ToolHints) -> None:
        self.name = function.__name__
        self.hints = hints
        self._function = function

    @property
    def description(self) -> str:
        return inspect.cleandoc(self._function.__doc__ or "")

    @cached_property
    def _type_hints(self) -> dict[str, Any]:
        return get_type_hints(self._function, include_extras=True)

    @cached_property
    def _arguments_type(self) -> type[msgspec.Struct]:
        """The struct of the tool's arguments."""
        parameters = list(inspect.signature(self._function).parameters.values())[1:]
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for one in parameters:
            if one.name in _INJECTED_PARAMETERS:
                continue
            kind = self._type_hints[one.name]
            bare = one.default is inspect.Parameter.empty
            fields.append((one.name, kind) if bare else (one.name, kind, one.default))
        return msgspec.defstruct(self.name, fields, kw_only=True, forbid_unknown_fields=True)

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        return {**_schema(self._arguments_type), "additionalProperties": False}

    @cached_property
    def output_schema(self) -> dict[str, Any]:
        return _schema(self._type_hints["return"])

    def parse_arguments(self, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the arguments.

        Raises:
            Invalid: They do not match the schema.
        """
        try:
            given = msgspec.convert(dict(arguments or {}), thread_safe_struct(self._arguments_type))
        except msgspec.ValidationError as error:
            wanted = ", ".join(self._arguments_type.__struct_fields__) or "nothing"
            raise Invalid(
                "bad_arguments",
                f"{self.name} cannot be called so ({error}): it takes {wanted}, as its input "
                "schema says",
            ) from None
        return {name: getattr(given, name) for name in self._arguments_type.__struct_fields__}

    def __call__(
        self,
        context: McpContext,
        arguments: Mapping[str, Any],
        *,
        report: ProgressReport,
        agreed: Confirmation,
    ) -> ToolResult:
        more = {"report": report, "agreed": agreed}
        takes = inspect.signature(self._function).parameters
        unseen = {name: more[name] for name in _INJECTED_PARAMETERS if name in takes}
        return self._function(context, **arguments, **unseen)


def tool(hints: ToolHints) -> Callable[[Callable[..., ToolResult]], McpTool]:
    """Return a decorator that turns a function into a tool."""
    return lambda function: McpTool(function, hints)


def _schema(kind: type) -> dict[str, Any]:
    """Return a schema with an object at its root, as the protocol requires, not a reference."""
    (root,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    name = root["$ref"].rpartition("/")[2]
    found = dict(parts.pop(name))
    found.pop("title", None)
    return {**found, "$defs": parts} if parts else found


def to_jsonable(answer: object) -> Any:
    """Return a result as JSON data. Bytes of a path that are not UTF-8 become escapes."""
    return _clean(msgspec.to_builtins(answer, enc_hook=str))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return valid_utf8(value)
    if isinstance(value, dict):
        return {valid_utf8(str(key)): _clean(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(one) for one in value]
    return value


def valid_utf8(text: str) -> str:
    """Replace surrogates, which stand for bytes that are not UTF-8, with escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
