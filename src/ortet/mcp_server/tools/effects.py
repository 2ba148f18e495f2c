"""artifact, artifacts, artifact_data, effects, settle: what was made, and what was done outside."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ortet._util.structs import known
from ortet.cli import output
from ortet.cli.session_args import pick, unknown
from ortet.errors import Invalid, Refused
from ortet.mcp_server.answers import Deed, deed_of, joined, some
from ortet.mcp_server.context import Desk
from ortet.mcp_server.tool import ADDS, READS, Answer, tool
from ortet.mcp_server.tools.workspace import Why

LARGEST = 1 << 20
"""Bytes of a file or artifact that are given back in one answer."""

Version = Annotated[
    Annotated[int, Meta(ge=1)] | None, Meta(description="Which one; the last unless given.")
]


class Artifact(Answer, frozen=True):
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
        what = output.safe(self.link) if self.link else output.size(self.size)
        kind = output.safe(self.kind or self.media)
        return f"{output.safe(self.name)}@{self.version}  {what}  {kind}".rstrip()


def artifact_of(found: Any) -> Artifact:
    return msgspec.convert(found, known(Artifact), from_attributes=True)


@tool(ADDS)
def artifact(
    desk: Desk,
    *,
    name: Annotated[
        str, Meta(description="Its name; without data or link, a file of the workspace.")
    ],
    data: Annotated[str | None, Meta(description="Its content, as text.")] = None,
    blob: Annotated[
        str | None, Meta(description="Its content in base64, if it is no text.")
    ] = None,
    link: Annotated[str, Meta(description="Keep only where it is.")] = "",
    kind: Annotated[str, Meta(description="What it is, as report or patch.")] = "",
    media: Annotated[str, Meta(description="Its media type, if not by the name.")] = "",
    why: Why = "",
) -> Artifact:
    """Keep a thing that was made: a file of the workspace, given content, or a link. The same name
    again is the next version; none is lost."""
    if sum((data is not None, blob is not None, bool(link))) > 1:
        raise Invalid("bad_arguments", "data, blob or link? give one of them")
    content: str | bytes | None = data
    if blob is not None:
        try:
            content = base64.b64decode(blob, validate=True)
        except (binascii.Error, ValueError) as error:
            raise Invalid("bad_arguments", f"blob is not base64 ({error}): correct it") from None
    with desk.writing() as session:
        made = session.artifact(name, data=content, link=link, kind=kind, media=media, why=why)
        return artifact_of(made)


class Artifacts(Answer, frozen=True):
    artifacts: list[Artifact]

    def __str__(self) -> str:
        return joined(*some(self.artifacts), "" if self.artifacts else "nothing was made yet")


@tool(READS)
def artifacts(
    desk: Desk,
    *,
    versions: Annotated[bool, Meta(description="Every version, not only the last.")] = False,
) -> Artifacts:
    """List what the session made: files, texts, links."""
    with desk.reading() as view:
        found = sorted(view.artifacts(), key=lambda one: (one.name, one.version))
    if not versions:
        found = list({one.name: one for one in found}.values())
    return Artifacts([artifact_of(one) for one in found])


class Content(Answer, frozen=True):
    """`data` is its text; for what is no UTF-8 it is null and `blob` has it in base64."""

    artifact: Artifact
    data: str | None
    blob: str | None

    def __str__(self) -> str:
        said = f"{self.artifact}, in base64" if self.data is None else self.data
        return output.safe(said, keep="\n\t")


@tool(READS)
def artifact_data(desk: Desk, name: str, version: Version = None) -> Content:
    """Give the content of a thing that was made; at most 1 MiB."""
    with desk.reading() as view:
        found = view.lineage(name, version).artifact
        check_size(found.name, found.size)
        data = view.artifact_data(found.name, found.version)
    text = as_text(data)
    blob = base64.b64encode(data).decode() if text is None else None
    return Content(artifact_of(found), text, blob)


def check_size(name: str, size: int) -> None:
    if size > LARGEST:
        raise Refused(
            "too_large",
            f"{name} has {output.size(size)}, and an answer holds {output.size(LARGEST)}: read it "
            "in the workspace, or with `ortet show` or `ortet artifact get`",
            size=size,
            largest=LARGEST,
        )


def as_text(data: bytes) -> str | None:
    """None for what is no text."""
    try:
        return data.decode() if b"\0" not in data else None
    except UnicodeDecodeError:
        return None


class Effects(Answer, frozen=True):
    effects: list[Deed]

    def __str__(self) -> str:
        return joined(*some(self.effects), "" if self.effects else "nothing was done")


@tool(READS)
def effects(
    desk: Desk,
    *,
    unsettled: Annotated[bool, Meta(description="Only those whose outcome is not known.")] = False,
) -> Effects:
    """List what the session and its forks did to the world, restored away or not."""
    with desk.reading() as view:
        found = unknown(desk, view) if unsettled else view.effects()
    return Effects([deed_of(one) for one in found])


class Settled(Answer, frozen=True):
    id: str
    state: str

    def __str__(self) -> str:
        return f"settled {self.id}: {self.state}"


@tool(ADDS)
def settle(
    desk: Desk,
    *,
    effect: Annotated[str, Meta(description="Its id, or 4 or more of its first or last digits.")],
    outcome: Annotated[Any, Meta(description="What it returned; any JSON.")] = None,
    failed: Annotated[bool, Meta(description="It was not done.")] = False,
) -> Settled:
    """Say what became of an effect whose outcome is not known. Find out first: look at the server,
    the mail, the account. From then on it counts as done, or as one that may be tried again."""
    if failed and outcome is not None:
        raise Invalid("bad_arguments", "what was not done has no outcome: give outcome or failed")
    with desk.reading() as view:
        id_ = pick((one.id for one in view.effects()), effect) or effect
    with desk.writing() as session:
        session.settle(id_, outcome, failed=failed)
    return Settled(id_, "failed" if failed else "done")
