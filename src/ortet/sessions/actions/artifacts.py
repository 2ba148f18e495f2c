"""Artifacts: content that a session made, by name and version, with its origin."""

from __future__ import annotations

import mimetypes
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from ortet._util.codec import to_json
from ortet._util.failpoints import failpoint
from ortet._util.validation import COUNT, FLAG, PATH, check_text, optional, require
from ortet.errors import Invalid, NotFound, OrtetError, Unavailable
from ortet.history.diff.tree_diff import diff_images
from ortet.ids import Oid
from ortet.journal.events import Draft, ObjectRef, check_plain
from ortet.journal.state.records import Artifact, Effect
from ortet.journal.state.state import StateTable
from ortet.objects.base import Kind, ObjectStore
from ortet.objects.blobs import BLOCK_BYTES, get_bytes, put_bytes, put_file
from ortet.sessions.context import SessionContext
from ortet.sessions.writing.pipeline import VerbPipeline, need_writer
from ortet.store.sweep_retry import retry_on_sweep

if TYPE_CHECKING:
    from ortet.workspaces.workspace import Workspace

_MAX_NAME_LENGTH = 1000
_MEDIA = {
    ".jsonl": "application/jsonl",
    ".md": "text/markdown",
    ".parquet": "application/vnd.apache.parquet",
    ".toml": "application/toml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
"""Media types that Python's own table lacks in some releases."""


class StoredContent(msgspec.Struct, frozen=True):
    """Stored bytes.

    Attributes:
        oid: Id of the content, in hex; "" means no content.
        size: Size in bytes.
    """

    oid: str
    size: int

    @property
    def data(self) -> bytes:
        """Return the id as bytes."""
        return bytes.fromhex(self.oid)

    @property
    def refs(self) -> list[ObjectRef]:
        """Return the object references for the event that names this content."""
        if not self.oid:
            return []
        kind = Kind.BLOB if self.size <= BLOCK_BYTES else Kind.BLOCKS
        return [(Oid(bytes.fromhex(self.oid)), kind)]


class Lineage(msgspec.Struct, frozen=True):
    """The origin of an artifact.

    Attributes:
        artifact: The artifact.
        action: The action that made it, or None.
        why: The reason.
    """

    artifact: Artifact
    action: Effect | None
    why: str


class Orphans(msgspec.Struct, frozen=True):
    """Inconsistencies between artifacts and files.

    Attributes:
        missing: Artifacts ("name@version") whose content is not in the store.
        files: Workspace paths that are newer than the first commit and have no artifact of that
            name.
    """

    missing: list[str]
    files: list[str]


def store_content(objects: ObjectStore, data: bytes) -> StoredContent:
    """Store bytes. Call inside `store.writing()`, and flush before the event is appended."""
    return StoredContent(put_bytes(objects, data).hex(), len(data))


def as_bytes(value: Any) -> bytes:
    """Return bytes and text as they are, anything else as JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    check_plain(value)
    return to_json(value).encode()


def store_file(objects: ObjectStore, path: Path, name: str) -> StoredContent:
    """Store the bytes of a file, and fail if it changes during the read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFound(
            "no_file", f"there is no file {path}: write it first, or give data=… or link=…"
        ) from None
    except OSError as error:
        raise Unavailable("unreadable", f"{path} cannot be read: {error.strerror}") from error
    try:
        return store_open(objects, fd, name, str(path))
    finally:
        os.close(fd)


def descriptor(data: BinaryIO, name: str) -> int:
    """Return the file descriptor of an open file. Raise Invalid if there is none."""
    try:
        return data.fileno()
    except (OSError, ValueError) as error:
        raise Invalid(
            "not_a_file", f"what {name} is made of is no open file: give one, or its bytes"
        ) from error


def store_open(objects: ObjectStore, fd: int, name: str, label: str) -> StoredContent:
    """Store the bytes of an open file, from its first byte.

    Raises:
        Invalid: "not_a_file" if it is not a regular file.
        Unavailable: "file_changed" if it was written to during the read.
    """
    before = os.fstat(fd)
    if not stat.S_ISREG(before.st_mode):
        raise Invalid("not_a_file", f"{label} is no regular file: give one, or data=…")
    if objects.scanner is not None:
        objects.scanner.file(fd, before.st_size, os.fsencode(name))
    oid = put_file(objects, fd, before.st_size)
    after = os.fstat(fd)
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise Unavailable("file_changed", f"{label} was written to meanwhile: repeat the call")
    return StoredContent(oid.hex(), before.st_size)


def load(objects: ObjectStore, content: StoredContent) -> bytes:
    return get_bytes(objects, content.data, content.size)


def locate(name: str, root: os.PathLike[str] | None) -> tuple[str, Path]:
    """Return the artifact name and the path of a file, below `root` if there is one.

    A symbolic link out of the workspace is refused: its target does not belong to the agent.
    """
    if root is None:
        path = Path(name)
        return (path.name if path.is_absolute() else path.as_posix()), path
    base = Path(os.path.realpath(root))
    path = Path(os.path.realpath(base / name))
    if not path.is_relative_to(base):
        raise Invalid(
            "outside_workspace",
            f"{name} is not in the workspace: give a path below it, or the content as data=…",
        )
    given = Path(os.path.normpath(base / name))
    return (given if given.is_relative_to(base) else path).relative_to(base).as_posix(), path


def check_name(name: str | os.PathLike[str]) -> str:
    if not isinstance(name, str):
        require(PATH._replace(kind="bad_name"), name=name)
    name = os.fspath(name)
    if name and len(name) <= _MAX_NAME_LENGTH and name.isprintable():
        return name
    odd = next((one for one in name if not one.isprintable()), "")
    why = f"it has {odd!r} in it; give" if odd else f"it has {len(name)} characters; give"
    raise Invalid(
        "bad_name",
        f"{name[:100]!r} cannot name an artifact: {why} 1 to {_MAX_NAME_LENGTH} that can be "
        "printed",
    )


def guess_media(name: str, data: bytes | str | BinaryIO | None) -> str:
    """Guess the media type from the file extension. The result is equal on every host."""
    known = _MEDIA.get(Path(name).suffix.lower())
    guessed = known or mimetypes.MimeTypes().guess_type(name)[0]
    if guessed:
        return guessed
    return "text/plain" if isinstance(data, str) else "application/octet-stream"


def key_of(name: str, version: int) -> str:
    return f"{name}\0{version:08d}"


def last_version(table: StateTable[Artifact], name: str) -> int:
    """Return the last version, or 0. Versions have no gaps, so a binary search finds it."""
    high = 1
    while table.get(key_of(name, high)) is not None:
        high *= 2
    low = high // 2  # exists, or is 0
    while high - low > 1:
        middle = (low + high) // 2
        if table.get(key_of(name, middle)) is None:
            high = middle
        else:
            low = middle
    return low


def find(table: StateTable[Artifact], name: str, version: int | None) -> Artifact:
    check_text(name=name)
    optional(COUNT, version=version)
    last = last_version(table, name)
    wanted = last if version is None else version
    found = table.get(key_of(name, wanted)) if 0 < wanted <= last else None
    if found is None:
        what = name if version is None else f"{name} version {version}"
        raise NotFound("no_artifact", f"there is no artifact {what}: s.artifacts() lists them")
    return found


def data_of(objects: ObjectStore, artifact: Artifact) -> bytes:
    return load(objects, content_of(artifact))


def content_of(artifact: Artifact) -> StoredContent:
    """Return the content of an artifact. Raise NotFound if it is only a link."""
    if artifact.link and not artifact.oid:
        raise NotFound(
            "no_content", f"artifact {artifact.name} is a link, its content is at {artifact.link}"
        )
    return StoredContent(artifact.oid, artifact.size)


def missing_content(objects: ObjectStore, artifacts: Iterable[Artifact]) -> list[str]:
    """Return the artifacts whose content cannot be read."""
    found = []
    for artifact in artifacts:
        if artifact.oid:
            try:
                data_of(objects, artifact)
            except OrtetError:
                found.append(f"{artifact.name}@{artifact.version}")
    return found


def unaccounted_files(files: Workspace, artifacts: Iterable[Artifact]) -> list[str]:
    """Return files that are newer than the first commit and have no artifact of that name."""
    before = None
    head = files.head
    with suppress(NotFound):  # the first commits may hold no files
        for commit in (
            files.store.history.first_parents(Oid(bytes.fromhex(head.oid))) if head else ()
        ):
            before = files.files.branch.image_at(commit)
    names = {artifact.name for artifact in artifacts}
    changes: list[Any] = diff_images(files.store.trees, before, files.files.current_image())
    return sorted(
        change.path
        for change in changes
        if change.new is not None
        and change.new.is_file
        and change.kind in ("added", "renamed")
        and change.path not in names
    )


# The artifact facet of a session: versions of results, their content and lineage.


_SECRET_HINT = "make it without (variables of a kernel: declare others)"


class ArtifactStore:
    """The artifacts of a session.

    `workspace` gives the files of the session, or None if it has none.
    """

    def __init__(
        self,
        context: SessionContext,
        pipeline: VerbPipeline | None = None,
        *,
        workspace: Callable[[], Workspace | None] = lambda: None,
    ) -> None:
        self._context = context
        self.store = context.store
        self._pipeline = pipeline
        self._workspace = workspace

    @property
    def _verbs(self) -> VerbPipeline:
        return need_writer(self._pipeline)

    def artifact(
        self,
        name: str | os.PathLike[str],
        *,
        kind: str = "",
        data: bytes | str | BinaryIO | None = None,
        media: str = "",
        link: str = "",
        why: str = "",
        allow_secrets: bool = False,
    ) -> Artifact:
        """Store an artifact. The same name again makes the next version.

        The artifact records the action in which it was made.

        Args:
            name: the name, or the path of the file in the workspace if there is no `data` and no
                `link`.
            kind: what it is, for example "report".
            data: the content, or an open file that is read from its first byte.
            media: the media type; by default guessed from the name.
            link: where the content is, if it is not stored.
            why: the reason.
            allow_secrets: store it even if it holds a known secret.

        Raises:
            Refused: "secret_found" if it holds a known secret.
        """
        check_text(kind=kind, media=media, link=link, why=why)
        require(FLAG, allow_secrets=allow_secrets)
        with self.store.secrets.allow(allow_secrets):
            made, kept = self.store_version(
                name, kind=kind, data=data, media=media, link=link, why=why
            )
        self._verbs.auto_commit_if_due("artifact", made)
        return kept

    @retry_on_sweep
    def store_version(
        self,
        name: str | os.PathLike[str],
        *,
        kind: str,
        data: bytes | str | BinaryIO | None,
        media: str = "",
        link: str = "",
        why: str = "",
    ) -> tuple[dict[str, Any], Artifact]:
        """Store the next version of an artifact, and return its event data and the artifact."""
        self._verbs.begin_change()
        text = check_name(name)
        with self.store.writing():  # a sweep must not delete the content before the event exists
            content = StoredContent("", 0)
            if data is not None and not isinstance(data, bytes | str) and hasattr(data, "fileno"):
                fd = descriptor(data, text)
                content = store_open(self.store.objects, fd, text, f"the file of {text}")
            elif data is not None:
                held = as_bytes(data)
                if search := self.store.objects.scanner:
                    search.data(held, f"artifact {text}", _SECRET_HINT)
                content = store_content(self.store.objects, held)
            elif not link:
                text, path = locate(text, self._root())
                content = store_file(self.store.objects, path, text)
            self.store.objects.flush()
            failpoint("artifact.stored")
            with self._verbs.writer.exclusive():  # two threads must not make the same version
                made = {
                    "name": text,
                    "version": last_version(self._context.state.artifacts, text) + 1,
                    "oid": content.oid,
                    "size": content.size,
                    "kind": kind,
                    "media": media or guess_media(text, data),
                    "link": link,
                    "action": self._verbs.effects.current(),
                    "why": why,
                }
                # durable at once: only an event in the catalog protects its content from a sweep
                self._verbs.writer.add(
                    Draft("artifact", made, self.store.author, content.refs), durable=True
                )
                return made, find(self._context.state.artifacts, text, None)

    def orphans(self) -> Orphans:
        """Return artifacts whose content is lost, and files without an artifact."""
        known, files = self.artifacts(), self._workspace()
        return Orphans(
            missing=missing_content(self.store.objects, known),
            files=unaccounted_files(files, known) if files is not None else [],
        )

    # reading

    def artifacts(self) -> list[Artifact]:
        """Return all versions of all artifacts, by name."""
        return list(self._context.state.artifacts)

    def artifact_data(self, name: str, version: int | None = None) -> bytes:
        """Return the content of an artifact; the last version by default.

        Raises:
            NotFound: there is no such artifact or version.
        """
        return data_of(self.store.objects, find(self._context.state.artifacts, name, version))

    def lineage(self, name: str, version: int | None = None) -> Lineage:
        """Return the artifact with the action and the reason that led to it."""
        artifact = find(self._context.state.artifacts, name, version)
        action = self._context.state.effects.get(artifact.action) if artifact.action else None
        return Lineage(artifact, action, artifact.why or (action.why if action else ""))

    # private

    def _root(self) -> os.PathLike[str] | None:
        files = self._workspace()
        return files.path if files is not None else None
