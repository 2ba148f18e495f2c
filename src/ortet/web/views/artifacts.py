"""Artifacts of a session: their names and versions, and a safe preview.

An artifact may be a page with a script. The preview shows text, a table, or an image of a type that
cannot contain scripts. Other artifacts can be downloaded or opened in a sandbox.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Literal

import msgspec
from starlette.responses import Response

from ortet.errors import OrtetError
from ortet.journal.state.records import Artifact
from ortet.objects.blobs import read_range
from ortet.sessions.actions.artifacts import content_of, find, guess_media
from ortet.sessions.reader import SessionReader
from ortet.web.request import PageRequest, parse_query, session_frame

PreviewKind = Literal["text", "json", "table", "image", "none"]

MAX_PREVIEW_BYTES = 256 << 10
"""Maximum size of text in a preview."""
_MAX_ROWS, _MAX_COLUMNS, _MAX_CELL_CHARACTERS = 200, 50, 500
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp")
_TABLES = {"text/csv": ",", "text/tab-separated-values": "\t"}


class ArtifactsQuery(msgspec.Struct, frozen=True):
    """The artifact to preview; without a name, only the list is shown."""

    name: Annotated[str, msgspec.Meta(max_length=4000)] = ""
    version: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0


class ArtifactVersions(msgspec.Struct, frozen=True):
    """One artifact name and its versions, newest first."""

    name: str
    versions: list[Artifact]

    @property
    def last(self) -> Artifact:
        return self.versions[0]


class ArtifactPreview(msgspec.Struct, frozen=True):
    """The preview of one version.

    `cut` counts bytes that are not shown. `why` says why there is none.
    """

    artifact: Artifact
    look: PreviewKind
    media: str
    text: str = ""
    head: list[str] = []
    rows: list[list[str]] = []
    cut: int = 0
    why: str = ""
    made_by: str = ""


class ArtifactsPage(msgspec.Struct, frozen=True):
    """The data of the artifacts page."""

    names: list[ArtifactVersions]
    ask: ArtifactsQuery
    preview: ArtifactPreview | None


def build_artifacts_page(view: SessionReader, ask: ArtifactsQuery) -> ArtifactsPage:
    """Return the data of the page. Raises NotFound for an unknown name or version."""
    by_name: dict[str, list[Artifact]] = {}
    for artifact in view.artifacts():
        by_name.setdefault(artifact.name, []).append(artifact)
    names = [
        ArtifactVersions(name, sorted(versions, key=lambda one: -one.version))
        for name, versions in by_name.items()
    ]
    names.sort(key=lambda one: -one.last.time)
    chosen = None
    if ask.name:
        chosen = find(view.internals.state.artifacts, ask.name, ask.version or None)
    return ArtifactsPage(names, ask, preview_artifact(view, chosen) if chosen is not None else None)


def preview_artifact(view: SessionReader, artifact: Artifact) -> ArtifactPreview:
    """Return the preview of one version of an artifact."""
    media = (artifact.media or guess_media(artifact.name, None)).partition(";")[0].strip().lower()
    lineage = view.artifact_store.lineage(artifact.name, artifact.version)
    preview = ArtifactPreview(
        artifact, "none", media, made_by=lineage.action.name if lineage.action is not None else ""
    )
    if media in _IMAGES:
        return msgspec.structs.replace(preview, look="image")
    try:
        data = b"".join(_read_start(view, artifact))
    except OrtetError as error:
        return msgspec.structs.replace(preview, why=error.message)
    cut = max(0, artifact.size - len(data))
    text = _text(data, is_cut=bool(cut))
    if text is None:
        return msgspec.structs.replace(preview, why="it is no text: download it to look at it")
    preview = msgspec.structs.replace(preview, look="text", text=text, cut=cut)
    if media in _TABLES:
        return _table(preview, _TABLES[media])
    if (media == "application/json" or media.endswith("+json")) and not cut:
        return _pretty(preview)
    return preview


def _read_start(view: SessionReader, artifact: Artifact) -> Iterator[bytes]:
    return read_range(view.internals.store.objects, content_of(artifact), 0, MAX_PREVIEW_BYTES)


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """Return the data as text, or None if it is binary."""
    if b"\0" in data:
        return None
    for rest in range(4 if is_cut else 1):  # the cut may split a character
        try:
            return data[: len(data) - rest].decode()
        except UnicodeDecodeError:
            continue
    return None


def _pretty(preview: ArtifactPreview) -> ArtifactPreview:
    try:
        text = json.dumps(json.loads(preview.text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):  # the content is not JSON
        return preview
    return msgspec.structs.replace(preview, look="json", text=text[: 2 * MAX_PREVIEW_BYTES])


def _table(preview: ArtifactPreview, delimiter: str) -> ArtifactPreview:
    try:
        lines = csv.reader(io.StringIO(preview.text, newline=""), delimiter=delimiter)
        rows = [
            [cell[:_MAX_CELL_CHARACTERS] for cell in row[:_MAX_COLUMNS]]
            for row in islice(lines, _MAX_ROWS + 1)
        ]
    except csv.Error:
        return preview
    if not rows:
        return preview
    head, *rest = rows
    return msgspec.structs.replace(preview, look="table", head=head, rows=rest)


def artifacts(page_request: PageRequest) -> Response:
    """Render the artifacts page."""
    ask = parse_query(page_request, ArtifactsQuery)
    with page_request.view() as view:
        page = build_artifacts_page(view, ask)
        frame = session_frame(view)
    return page_request.render("artifacts.html", tab="artifacts", page=page, **frame)
