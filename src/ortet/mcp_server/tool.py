"""Tools: functions with typed arguments and results, and their schemas."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.cli.terminal import output
from ortet.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ortet.history.commits import CommitInfo
    from ortet.history.diff import tree_diff
    from ortet.history.records import Image
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
    """The result of a tool: fields for programs, and `str` as text for a model."""


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
        for parameter in parameters:
            if parameter.name in _INJECTED_PARAMETERS:
                continue
            kind = self._type_hints[parameter.name]
            bare = parameter.default is inspect.Parameter.empty
            fields.append(
                (parameter.name, kind) if bare else (parameter.name, kind, parameter.default)
            )
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
            converted = msgspec.convert(
                dict(arguments or {}), thread_safe_struct(self._arguments_type)
            )
        except msgspec.ValidationError as error:
            wanted = ", ".join(self._arguments_type.__struct_fields__) or "nothing"
            raise Invalid(
                "bad_arguments",
                f"{self.name} cannot be called so ({error}): it takes {wanted}, as its input "
                "schema says",
            ) from None
        return {name: getattr(converted, name) for name in self._arguments_type.__struct_fields__}

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
    schema = dict(parts.pop(name))
    schema.pop("title", None)
    return {**schema, "$defs": parts} if parts else schema


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


# Result types that several tools share, and their text for a model.
#
# Field names are those of `--json`.

MAX_CHANGES = 200
"""Maximum number of changes in a list; all are counted."""

_MAX_LINES = 40
"""Maximum number of lines of a list in the text of a result."""


class CommitItem(ToolResult, frozen=True):
    oid: str
    state: str
    parents: list[str]
    message: str
    time: int
    author: str
    refs: list[str] = []

    def __str__(self) -> str:
        names = f" ({', '.join(map(output.safe, self.refs))})" if self.refs else ""
        when = output.format_time(self.time)
        return f"{output.short_id(self.oid)}  {when}{names}  {output.title(self.message)}".rstrip()


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    path: str
    kind: str
    old_path: str = ""
    fields: list[str] = []
    patch: str = ""

    def __str__(self) -> str:
        moved = f"{output.safe(self.old_path)} -> " if self.old_path else ""
        what = f" ({', '.join(self.fields)})" if self.kind == "metadata" else ""
        return f"{output.CHANGE_MARKS.get(self.kind, '?')} {moved}{output.safe(self.path)}{what}"


class LossItem(msgspec.Struct, frozen=True):
    path: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{output.safe(self.path) or self.what}: {self.what} ({output.safe(self.why)})"


class Deed(msgspec.Struct, frozen=True, omit_defaults=True):
    """An effect on the world; `state` is begun, done, failed or unsettled. `command`: what was
    run."""

    id: str
    name: str
    state: str
    replay: str
    time: int
    why: str = ""
    key: str = ""
    command: str = ""

    def __str__(self) -> str:
        command = f": {output.title(self.command)}" if self.command else ""
        why = f"  ({output.title(self.why)})" if self.why else ""
        return f"{self.id}  {self.state}  {output.safe(self.name)}{command}{why}"


def commit_of(info: CommitInfo, refs: Sequence[str] = ()) -> CommitItem:
    """Return a commit with the names of branches and tags on it."""
    return CommitItem(**output.fields(info), refs=list(refs))


def change_of(change: tree_diff.TreeChange, patch: str = "") -> Change:
    """Return one changed file, with its patch if there is one."""
    return Change(change.path, change.kind, change.old_path or "", list(change.fields), patch)


def changes_of(changes: Iterable[tree_diff.TreeChange]) -> list[Change]:
    """Return the first `MAX_CHANGES` changes."""
    return [change_of(one) for one in changes][:MAX_CHANGES]


def effect_of(effect: Any) -> Deed:
    """Return an effect with the fields that tools show."""
    return msgspec.convert(effect, thread_safe_struct(Deed), from_attributes=True)


def losses_of(losses: Iterable[Any]) -> list[LossItem]:
    """Return the losses of a restore or commit."""
    return [LossItem(one.path, one.what, one.why) for one in losses]


def limit_lines(lines: Iterable[object], total: int | None = None) -> list[str]:
    """Return the first lines as text, and a line with the number of those left out."""
    shown = [str(line) for line in lines]
    count = len(shown) if total is None else total
    rest = count - min(_MAX_LINES, len(shown))
    return shown[:_MAX_LINES] + ([f"... and {rest} more"] if rest > 0 else [])


def join_lines(*lines: str) -> str:
    """Join the lines that are not empty."""
    return "\n".join(line for line in lines if line)


def cut_middle(text: str, max_characters: int) -> str:
    """Return a long text without its middle."""
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def image_at(context: McpContext, commit: str) -> Image | None:
    """Return the image of a commit, or None if the commit has no files."""
    from ortet.ids import from_hex

    oid = from_hex(commit)
    return context.hub.history.image(oid) if context.hub.history.state(oid).machine else None


def changed_files(context: McpContext, old: str | None, new: str) -> list[tree_diff.TreeChange]:
    """Return the differences of files between two commits."""
    from ortet.history.diff.tree_diff import diff_images

    before, after = (image_at(context, ref) if ref else None for ref in (old, new))
    if after is None:
        return []
    return diff_images(context.hub.trees, before, after)
