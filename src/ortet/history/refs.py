"""Branches, tags, their reflog, and the resolution of commit names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Literal

import msgspec

from ortet._util.codec import decode
from ortet.backends.base import Catalog, Head, Lease, Move, Op
from ortet.errors import Conflict, Invalid, NotFound
from ortet.history.commits import CommitInfo, History
from ortet.ids import OID_BYTES, Oid, to_hex
from ortet.objects.base import Kind, ObjectStore

RefKind = Literal["branch", "tag"]
Ref = str | CommitInfo
"""A commit as its user names it: a name, or a CommitInfo that a call returned."""

FindByPrefix = Callable[[str], list[tuple[Oid, Kind]]]
"""Returns the objects whose ids start with a hex prefix."""

RunPinned = Callable[[Oid, Callable[[], object]], object]
"""Runs a call that creates a ref to a commit, and protects the commit from a concurrent sweep."""

_HEAD_NAMES = ("HEAD", "@")
MAX_NAME_BYTES = 200
MIN_PREFIX_DIGITS = 4

_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")
_REF_SYNTAX = re.compile(
    r"(?P<base>.*?)(?:@\{(?P<at>\d{1,9})\})?(?P<steps>(?:[~^]\d{0,9})*)", re.DOTALL
)
_STEP = re.compile(r"([~^])(\d*)")
_HEX = re.compile(r"[0-9a-fA-F]+")


def is_ref_name(name: str) -> bool:
    """Return True if a ref may have this name.

    The rules are those of Git, and: no leading `-`, no full id, at most 200 bytes.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return (
        0 < size <= MAX_NAME_BYTES
        and name not in _HEAD_NAMES
        and not name.startswith("-")
        and not name.endswith(".")
        and _FORBIDDEN.search(name) is None
        and all(part and part[0] != "." and not part.endswith(".lock") for part in name.split("/"))
        and not (len(name) == 2 * OID_BYTES and _HEX.fullmatch(name))
    )


def check_ref_name(name: str) -> str:
    """Return the name if a branch or tag may have it. Otherwise raise Invalid("bad_name")."""
    if name in _HEAD_NAMES:
        raise Invalid(
            "bad_name",
            f"{name!r} always means the branch you work on: give the new branch or tag another "
            "name",
        )
    if not is_ref_name(name):
        raise Invalid(
            "bad_name",
            f"{name[:100]!r} cannot name a branch or tag: use letters, digits and - _ . / without "
            "spaces, `..`, `@{` or any of ~^:?*[\\, not starting with `-` or `.`, up to 200 bytes",
        )
    return name


class Refs:
    """Branches and tags, stored as heads in the catalog.

    Every change adds an entry to the reflog.
    """

    def __init__(
        self, catalog: Catalog, objects: ObjectStore, find_by_prefix: FindByPrefix
    ) -> None:
        self._catalog = catalog
        self._history = History(objects)
        self._find_by_prefix = find_by_prefix
        self.is_visible: Callable[[Oid], bool] | None = (
            None  # for the current caller; None: every commit is visible
        )
        self.run_pinned: RunPinned = lambda _, call: call()

    def branches(self) -> list[Head]:
        """Return the branches sorted by name. Names have no prefix."""
        return self._list("branch")

    def tags(self) -> list[Head]:
        """Return the tags sorted by name. Names have no prefix."""
        return self._list("tag")

    def get(self, name: str, *, kind: RefKind = "branch") -> Head | None:
        """Return a branch or tag, or None."""
        head = self._catalog.head(f"{kind}:{name}")
        return None if head is None else msgspec.structs.replace(head, name=name)

    def create(
        self,
        name: str,
        oid: Oid,
        *,
        kind: RefKind = "branch",
        actor: str = "",
        detail: str = "",
    ) -> None:
        """Create a branch or tag. Raises Conflict("head_moved") if the name is taken."""
        self._history.read(oid)
        move = Move(f"{kind}:{check_ref_name(name)}", None, oid)
        with _translate_conflict(kind, name):
            self.run_pinned(
                oid,
                lambda: self._catalog.move(
                    [move], verb=f"create {kind}", actor=actor, detail=detail
                ),
            )

    def move(
        self,
        name: str,
        to: Oid,
        *,
        expect: Oid | None,
        kind: RefKind = "branch",
        verb: str = "move",
        actor: str = "",
        detail: str = "",
        lease: Lease | None = None,
    ) -> None:
        """Move a branch or tag from `expect` to `to` (compare and set).

        `expect` None means that the name must not exist. Raises Conflict("head_moved") if it is
        elsewhere.
        """
        move = Move(f"{kind}:{check_ref_name(name)}", expect, to)
        with _translate_conflict(kind, name):
            self._catalog.move([move], verb=verb, actor=actor, detail=detail, lease=lease)

    def delete(
        self,
        name: str,
        *,
        kind: RefKind = "branch",
        expect: Oid | None = None,
        actor: str = "",
        detail: str = "",
    ) -> Oid:
        """Delete a branch or tag, and return the commit it pointed to.

        The reflog keeps that commit. With `expect`, the ref is deleted only if it points there.
        """
        head = self._catalog.head(f"{kind}:{name}")
        if head is None:
            raise self._unknown_ref(name, kind)
        move = Move(head.name, head.oid if expect is None else expect, None)
        with _translate_conflict(kind, name):
            self._catalog.move([move], verb=f"delete {kind}", actor=actor, detail=detail)
        return head.oid

    def reflog(self, name: str, *, kind: RefKind = "branch") -> list[Op]:
        """Return every move of a branch or tag, newest first, also of a deleted one.

        A caller with restricted visibility sees only moves since the ref was last created. An
        earlier ref of the same name may have belonged to another user.
        """
        moves: list[Op] = []
        while page := self._catalog.ops(f"{kind}:{name}", after=moves[-1].seq if moves else 0):
            moves += page
        return moves[::-1] if self.is_visible is None else since_creation(moves[::-1])

    def resolve(self, ref: Ref, default_branch: str | None = None) -> Oid:
        """Return the commit that `ref` names.

        `ref` is one of: a full id, a branch, a tag, `branch:NAME`, `tag:NAME`, a unique prefix of
        an id (at least 4 digits), or HEAD. HEAD is the default branch and may be omitted before a
        suffix. The suffix `@{n}` means the position n moves ago. Then any number of `~n` (n steps
        back along first parents) and `^n` (the n-th parent) may follow.
        """
        text = ref_text(ref)
        match = _REF_SYNTAX.fullmatch(text)
        if match is None:
            raise self._unknown_ref(text)
        base, position = match["base"], match["at"]
        head = None
        if base == "" or base in _HEAD_NAMES:
            base = f"branch:{default_branch or self._only_branch()}"
            # Not _find_head: a deep fork's name may exceed the limit.
            head = self._catalog.head(base)
            if head is None and (position is None or not self._catalog.ops(base)):
                raise NotFound("no_commit", "no commit yet: run `ortet commit`")
        if position is not None:
            oid = self._resolve_reflog(base, int(position))
        else:
            oid = head.oid if head is not None else self._resolve_base(base)
        # If the commit is not visible, its ancestors are not visible either.
        if self.is_visible is not None and not self.is_visible(oid):
            raise self._unknown_ref(text)
        for sign, digits in _STEP.findall(match["steps"]):
            count = int(digits or 1)
            go = self._history.nth_parent if sign == "~" else self._history.parent
            oid = go(oid, count)
        return oid

    def _resolve_base(self, text: str) -> Oid:
        full = len(text) == 2 * OID_BYTES and _HEX.fullmatch(text) is not None
        head = None if full else self._find_head(text)
        if head is not None:
            return head.oid
        if len(text) < MIN_PREFIX_DIGITS or not _HEX.fullmatch(text):
            raise self._unknown_ref(text)
        matches = self._find_by_prefix(text.lower())
        commits = sorted(oid for oid, kind in matches if kind == Kind.COMMIT)
        if self.is_visible is not None:
            commits = [oid for oid in commits if self.is_visible(oid)]
        if len(commits) == 1:
            return commits[0]
        if commits:
            ids = [to_hex(oid) for oid in commits]
            raise Invalid(
                "ambiguous",
                f"{text} is the start of {len(ids)} commits ({_join_first(ids)}): give more digits",
                candidates=ids,
            )
        if matches and self.is_visible is None:
            raise NotFound(
                "no_commit",
                f"{text} is a {matches[0][1].name.lower()}, not a commit: "
                "`ortet log` lists commits",
            )
        raise self._unknown_ref(text)

    def _find_head(self, text: str) -> Head | None:
        prefix, colon, name = text.rpartition(":")
        if not is_ref_name(name) or prefix not in ("", "branch", "tag"):
            return None
        if colon:
            return self._catalog.head(text)
        return self._catalog.head(f"branch:{text}") or self._catalog.head(f"tag:{text}")

    def _resolve_reflog(self, text: str, moves: int) -> Oid:
        """Return the commit of a branch or tag some moves ago."""
        name = text.removeprefix("branch:")
        ops = self.reflog(name) if is_ref_name(name) else []
        if not ops and is_ref_name(name := text.removeprefix("tag:")):
            ops = self.reflog(name, kind="tag")
        if not ops:
            raise self._unknown_ref(text)
        values = [op.new for op in ops] + [ops[-1].old]
        oid = values[moves] if moves < len(values) else None
        if oid is None and self.is_visible is not None:
            raise self._unknown_ref(text)
        if oid is None:
            raise NotFound(
                "no_reflog",
                f"{name!r} had no commit {moves} moves ago: use a smaller number in @{{}}",
            )
        return oid

    def _only_branch(self) -> str:
        if self.is_visible is not None:
            raise Invalid("no_default", "say which branch, tag or commit you mean", candidates=[])
        names = [head.name for head in self.branches()]
        if len(names) == 1:
            return names[0]
        if not names:
            raise NotFound("no_commit", "there is no branch yet: make a first commit")
        raise Invalid(
            "no_default", f"say which branch you mean: {_join_first(names)}", candidates=names
        )

    def _unknown_ref(self, text: str, kind: RefKind | None = None) -> NotFound:
        from difflib import get_close_matches  # noqa: PLC0415 - no need of it when all is well

        if self.is_visible is not None:  # do not reveal similar names
            return NotFound("no_ref", f"no branch, tag or commit is called {text[:100]!r}", near=[])
        if kind is None:
            heads = [*self.branches(), *self.tags()]
            text = text.removeprefix("branch:").removeprefix("tag:")
        else:
            heads = self._list(kind)
        near = get_close_matches(text[:MAX_NAME_BYTES], [head.name for head in heads], n=3)
        look = f"`ortet {kind or 'branch'}` lists what there is"
        hint = f"did you mean {_join_first(near)}?" if near else look
        what = kind or "branch, tag or commit"
        return NotFound("no_ref", f"no {what} is called {text[:100]!r}: {hint}", near=near)

    def _list(self, kind: RefKind) -> list[Head]:
        prefix = f"{kind}:"
        heads: list[Head] = []
        while page := self._catalog.heads(prefix, after=heads[-1].name if heads else ""):
            heads += page
        return [msgspec.structs.replace(h, name=h.name.removeprefix(prefix)) for h in heads]


def since_creation(ops: Sequence[Op]) -> list[Op]:
    """Return the moves, newest first, since the ref was last created. None of a deleted ref."""
    return list(takewhile(lambda op: op.new is not None, ops))


def ref_text(ref: Ref) -> str:
    """Return the text that names a commit. Raises Invalid("bad_ref") if `ref` names none."""
    text = ref.oid if isinstance(ref, CommitInfo) else ref
    if not isinstance(text, str):
        raise Invalid(
            "bad_ref", f"{ref!r} names no commit: give a branch, a tag, an id, or a commit itself"
        )
    if not text:
        raise Invalid("bad_ref", "an empty name means no commit: give a branch, a tag or an id")
    return text


@contextmanager
def _translate_conflict(kind: RefKind, name: str) -> Iterator[None]:
    """Translate a Conflict about a catalog head into one about a branch or tag."""
    try:
        yield
    except Conflict as error:
        if error.kind != "head_moved":
            raise
        message = f"{kind} {name!r} was moved meanwhile: look at it again, then repeat"
        if error.details.get("expect") is None:
            message = f"there is a {kind} {name!r} already: choose another name, or delete it first"
        raise Conflict(error.kind, message, **error.details) from error


def _join_first(names: Sequence[str], count: int = 5) -> str:
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


REFLOG_EXPIRY_ROW = ("care", "expired")
"""Kind and key of the row that holds the expiry of reflog entries."""


class ReflogExpiry(msgspec.Struct, frozen=True):
    """Marks reflog entries whose commits a sweep may delete.

    An entry is expired if its number is at most `seq` and it is older than `time`. The catalog
    keeps the newest entry of each head regardless of age. Age alone is therefore not enough: the
    old commit of such an entry may already be deleted.
    """

    time: int = 0
    seq: int = 0

    def covers(self, op: Op) -> bool:
        """Return True if the reflog entry has expired."""
        return op.seq <= self.seq and op.time < self.time


def load_reflog_expiry(catalog: Catalog) -> ReflogExpiry:
    """Return the stored expiry; by default nothing has expired."""
    row = catalog.row(*REFLOG_EXPIRY_ROW)
    return decode(ReflogExpiry, row.value) if row else ReflogExpiry()
