"""Tools for artifacts and effects: artifact, artifacts, artifact_data, effects, settle."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ortet._util.structs import thread_safe_struct
from ortet.cli.session_args import match_id, unsettled_effects
from ortet.cli.terminal import output
from ortet.errors import Invalid, Refused
from ortet.mcp_server.context import McpContext
from ortet.mcp_server.tool import (
    ADDS,
    READS,
    Deed,
    ToolResult,
    effect_of,
    join_lines,
    limit_lines,
    tool,
)
from ortet.mcp_server.tools.workspace import Why

MAX_CONTENT_BYTES = 1 << 20
"""Maximum size of a file or artifact in one answer."""

Version = Annotated[
    Annotated[int, Meta(ge=1)] | None, Meta(description="The version; by default the last.")
]


class ArtifactItem(ToolResult, frozen=True):
    name: str
    version: int
    oid: str
    size: int
    kind: str
    media: str
    link: str
    why: str
    seq: int
    time: int

    def __str__(self) -> str:
        what = output.safe(self.link) if self.link else output.format_size(self.size)
        kind = output.safe(self.kind or self.media)
        return f"{output.safe(self.name)}@{self.version}  {what}  {kind}".rstrip()


def artifact_of(record: Any) -> ArtifactItem:
    return msgspec.convert(record, thread_safe_struct(ArtifactItem), from_attributes=True)


@tool(ADDS)
def artifact(
    context: McpContext,
    *,
    name: Annotated[
        str,
        Meta(
            description="The name. Without data or link, it is the path of a file of the workspace."
        ),
    ],
    data: Annotated[str | None, Meta(description="The content, as text.")] = None,
    blob: Annotated[
        str | None, Meta(description="The content in base64, if it is not text.")
    ] = None,
    link: Annotated[str, Meta(description="The address of the content, which is not copied.")] = "",
    kind: Annotated[str, Meta(description="The kind, such as report or patch.")] = "",
    media: Annotated[
        str, Meta(description="The media type; by default derived from the name.")
    ] = "",
    why: Why = "",
) -> ArtifactItem:
    """Store an artifact: a file of the workspace, given content, or a link. If the name exists
    already, this is its next version. All versions are kept.
    """
    if sum((data is not None, blob is not None, bool(link))) > 1:
        raise Invalid("bad_arguments", "data, blob and link exclude each other: give one of them")
    content: str | bytes | None = data
    if blob is not None:
        try:
            content = base64.b64decode(blob, validate=True)
        except (binascii.Error, ValueError) as error:
            raise Invalid("bad_arguments", f"blob is not base64 ({error}): correct it") from None
    with context.open_session() as session:
        record = session.artifact(name, data=content, link=link, kind=kind, media=media, why=why)
        return artifact_of(record)


class ArtifactsToolResult(ToolResult, frozen=True):
    artifacts: list[ArtifactItem]

    def __str__(self) -> str:
        return join_lines(*limit_lines(self.artifacts), "" if self.artifacts else "no artifact yet")


@tool(READS)
def artifacts(
    context: McpContext,
    *,
    versions: Annotated[bool, Meta(description="List every version, not only the last.")] = False,
) -> ArtifactsToolResult:
    """List the artifacts of the session: files, texts and links."""
    with context.read_session() as view:
        listed = sorted(view.artifacts(), key=lambda one: (one.name, one.version))
    if not versions:
        listed = list({one.name: one for one in listed}.values())
    return ArtifactsToolResult([artifact_of(one) for one in listed])


class ArtifactDataToolResult(ToolResult, frozen=True):
    """`data`: the content as text. If the content is not UTF-8, `data` is null, and `blob` is the
    content in base64.
    """

    artifact: ArtifactItem
    data: str | None
    blob: str | None

    def __str__(self) -> str:
        text = f"{self.artifact}, in base64" if self.data is None else self.data
        return output.safe(text, keep="\n\t")


@tool(READS)
def artifact_data(
    context: McpContext, name: str, version: Version = None
) -> ArtifactDataToolResult:
    """Return the content of an artifact, at most 1 MiB."""
    with context.read_session() as view:
        record = view.artifact_store.lineage(name, version).artifact
        check_size(record.name, record.size)
        data = view.artifact_store.artifact_data(record.name, record.version)
    text = as_text(data)
    blob = base64.b64encode(data).decode() if text is None else None
    return ArtifactDataToolResult(artifact_of(record), text, blob)


def check_size(name: str, size: int) -> None:
    if size > MAX_CONTENT_BYTES:
        raise Refused(
            "too_large",
            f"{name} has {output.format_size(size)}, and an answer holds "
            f"{output.format_size(MAX_CONTENT_BYTES)}: read it "
            "in the workspace, or with `ortet show` or `ortet artifact get`",
            size=size,
            largest=MAX_CONTENT_BYTES,
        )


def as_text(data: bytes) -> str | None:
    """Return the data as text, or None if it is binary."""
    try:
        return data.decode() if b"\0" not in data else None
    except UnicodeDecodeError:
        return None


class EffectsToolResult(ToolResult, frozen=True):
    effects: list[Deed]

    def __str__(self) -> str:
        return join_lines(*limit_lines(self.effects), "" if self.effects else "no effect yet")


@tool(READS)
def effects(
    context: McpContext,
    *,
    unsettled: Annotated[
        bool, Meta(description="Only effects whose outcome is not known.")
    ] = False,
) -> EffectsToolResult:
    """List the effects of the session and its forks outside of the store. Effects of a
    restored-away timeline are included.
    """
    with context.read_session() as view:
        selected = unsettled_effects(context.call, view) if unsettled else view.effects()
    return EffectsToolResult([effect_of(one) for one in selected])


class SettleToolResult(ToolResult, frozen=True):
    id: str
    state: str

    def __str__(self) -> str:
        return f"settled {self.id}: {self.state}"


@tool(ADDS)
def settle(
    context: McpContext,
    *,
    effect: Annotated[str, Meta(description="The id, or 4 or more of its first or last digits.")],
    outcome: Annotated[Any, Meta(description="The result of the action, any JSON.")] = None,
    failed: Annotated[bool, Meta(description="The action was not performed.")] = False,
) -> SettleToolResult:
    """Record the outcome of an effect whose outcome is not known. Find out first: look at the
    server, the mail or the account. Afterwards the effect counts as done, or as one that may be
    tried again.
    """
    if failed and outcome is not None:
        raise Invalid(
            "bad_arguments", "an action that failed has no outcome: give outcome or failed"
        )
    with context.read_session() as view:
        id_ = match_id((one.id for one in view.effects()), effect) or effect
    with context.open_session() as session:
        session.actions.settle(id_, outcome, failed=failed)
    return SettleToolResult(id_, "failed" if failed else "done")
