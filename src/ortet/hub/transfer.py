"""Copy branches and tags from one store to another, with all objects that they need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ortet._util.validation import CALLABLE, LIST, PATH, optional, require
from ortet.backends.base import Head, Move, RowChange
from ortet.errors import Conflict, Invalid, NotFound
from ortet.history.commits import CommitInfo
from ortet.history.references import references
from ortet.history.refs import Ref, is_ref_name, ref_text
from ortet.history.transfer import bundle
from ortet.history.transfer.bundle import BundleImport, Progress
from ortet.history.transfer.bundle_file import BundleFile, BundleLimits
from ortet.history.transfer.copy_missing import ObjectCopyReport, copy_missing
from ortet.ids import Oid, to_hex
from ortet.objects.base import Kind
from ortet.store.context import StoreContext
from ortet.store.sweep_retry import run_with_sweep_retry

if TYPE_CHECKING:
    from ortet.history.transfer.bundle import BundleReport
    from ortet.journal.reports.checkpoint import AgentCheckpoint
    from ortet.sessions.manager import SessionManager
    from ortet.sessions.session import Session


class ArrivalRows(NamedTuple):
    """Rows that are written in the transaction that creates or moves the branches.

    `erasures` records the erasures of the store that objects come from. `effects` records the
    effects in the journals of commits, so that none of them is performed again here.
    """

    erasures: Callable[[BundleImport, str], list[RowChange]]
    effects: Callable[[Iterable[Oid], Mapping[Oid, tuple[Oid, Kind]]], list[RowChange]]


_MAX_NAME_ATTEMPTS = 100
"""Number of attempts to find free branch names while other processes take names."""


class TransferReport(msgspec.Struct, frozen=True):
    """Result of a pull or push.

    Attributes:
        branches: Branches in the target by name, with their commit ids.
        tags: Tags in the target by name, with their commit ids.
        moved: Names of the branches and tags that are new or have moved.
        kept: Tags that exist in the target with another commit. They did not change.
        objects: Number of objects that were sent.
        bytes: Size of the objects that were sent.
        known: Number of objects that the target already had.
    """

    branches: dict[str, str]
    tags: dict[str, str]
    moved: list[str]
    kept: list[str]
    objects: int
    bytes: int
    known: int


def transfer_refs(
    source: StoreContext,
    target: StoreContext,
    names: Sequence[str],
    *,
    adopt: ArrivalRows,
    fast_forward_only: bool,
    progress: Progress | None,
) -> TransferReport:
    """Copy branches and tags of `source` to `target`; all of them if `names` is empty.

    A branch that has diverged in `target`, or is in use there, gets a name with a number. With
    `fast_forward_only` it raises Conflict("not_forward") instead, before anything is sent.
    """
    branches, tags = _select_refs(source, names)
    if fast_forward_only:
        _plan_branch_moves(
            source, target, branches, fast_forward_only=True
        )  # check before anything is sent
    return run_with_sweep_retry(
        target,
        lambda: _transfer(
            source,
            target,
            (branches, tags),
            adopt=adopt,
            fast_forward_only=fast_forward_only,
            progress=progress,
        ),
    )


def _transfer(
    source: StoreContext,
    target: StoreContext,
    chosen: tuple[dict[str, Oid], dict[str, Oid]],
    *,
    adopt: ArrivalRows,
    fast_forward_only: bool,
    progress: Progress | None,
) -> TransferReport:
    branches, tags = chosen
    tips = list(dict.fromkeys([*branches.values(), *tags.values()]))
    with target.writing():
        heads = [head.oid for head in (*target.refs.branches(), *target.refs.tags())]
        carried = copy_missing(
            source.objects,
            target.objects,
            tips,
            flush=target.objects.flush,
            heads=heads,
            progress=progress,
        )
        erased: Sequence[RowChange] = ()
        if carried.heirs:
            found = BundleImport({**tags, **branches}, carried.heirs)
            erased = adopt.erasures(found, source.url)
        placed, new = move_heads(
            source,
            target,
            chosen,
            lambda: [*erased, *adopt.effects(tips, carried.heirs)],
            fast_forward_only=fast_forward_only,
        )
    return transfer_report(placed, tags, new, carried, target)


def move_heads(
    source: StoreContext,
    target: StoreContext,
    chosen: tuple[dict[str, Oid], dict[str, Oid]],
    rows: Callable[[], Sequence[RowChange]],
    *,
    fast_forward_only: bool,
) -> tuple[dict[str, tuple[Oid | None, Oid]], dict[str, Oid]]:
    """Move the branches and create the tags in one catalog transaction.

    All objects must be stored already. The transaction is retried with other names if another
    process takes a name, and with other `rows` if another process changes one of them.

    Returns:
        For each branch, its old and new commit; and the tags that are new.
    """
    branches, tags = chosen
    for _ in range(_MAX_NAME_ATTEMPTS):
        placed = _plan_branch_moves(source, target, branches, fast_forward_only=fast_forward_only)
        new = {name: oid for name, oid in tags.items() if target.refs.get(name, kind="tag") is None}
        moves = [
            *(
                Move(f"branch:{name}", was, oid)
                for name, (was, oid) in placed.items()
                if was != oid
            ),
            *(Move(f"tag:{name}", None, oid) for name, oid in new.items()),
        ]
        try:
            target.catalog.move(moves, verb="pull", actor=target.author, rows=rows())
        except Conflict as error:  # another process moved or created one of them concurrently
            if error.kind == "swept":
                raise
            taken = error
        else:
            return placed, new
    raise taken


def _select_refs(
    source: StoreContext, names: Sequence[str]
) -> tuple[dict[str, Oid], dict[str, Oid]]:
    branches = {head.name: head.oid for head in source.refs.branches()}
    tags = {head.name: head.oid for head in source.refs.tags()}
    for name in names:
        if name not in branches and name not in tags:
            raise ref_not_found(name, source.url)
    if not names:
        return branches, tags
    return (
        {name: branches[name] for name in names if name in branches},
        {name: tags[name] for name in names if name not in branches},
    )


def _plan_branch_moves(
    source: StoreContext,
    target: StoreContext,
    branches: Mapping[str, Oid],
    *,
    fast_forward_only: bool,
) -> dict[str, tuple[Oid | None, Oid]]:
    """Return for each branch its name in `target`, its present head and its new head."""
    placed: dict[str, tuple[Oid | None, Oid]] = {}
    for name, oid in branches.items():
        candidate, number = name, 1
        while (
            found := _branch_move(source, target, candidate, oid)
        ) is None or candidate in placed:
            if fast_forward_only:
                raise _not_forward(target, name)
            number += 1
            candidate = (
                f"{name}-{number}" if is_ref_name(f"{name}-{number}") else f"pulled-{number}"
            )
        placed[candidate] = found
    return placed


def _branch_move(
    source: StoreContext, target: StoreContext, name: str, oid: Oid
) -> tuple[Oid | None, Oid] | None:
    """Return the present and the new head of a branch, or None if the name is taken.

    The name is taken by a branch that has diverged or is in use, or by a workspace without
    commits.
    """
    head = target.refs.get(name)
    if head is None:
        return None if target.catalog.row("workspace", name) is not None else (None, oid)
    if head.oid == oid:
        return head.oid, oid
    if target.objects.has(oid) and _is_ancestor_of_head(target, oid, head):
        return head.oid, head.oid  # the branch in `target` is ahead; leave it there
    if _is_in_use(target, name) or not source.objects.has(head.oid):
        return None
    return (head.oid, oid) if source.history.is_ancestor(head.oid, oid) else None


def _is_ancestor_of_head(target: StoreContext, oid: Oid, head: Head) -> bool:
    return oid in target.history.ancestors(head.oid)


def _is_in_use(target: StoreContext, name: str) -> bool:
    """Return True if a session or a workspace uses the branch.

    Moving its head would leave their state behind.
    """
    in_use = target.catalog.row("session-branch", name) is not None
    return in_use or target.catalog.row("workspace", name) is not None


def ref_not_found(name: str, where: object) -> NotFound:
    """Return the error for a ref that does not exist in a store or bundle."""
    return NotFound("no_ref", f"{name!r} is no branch or tag of {where}: `ortet branch` lists them")


def _not_forward(target: StoreContext, name: str) -> Conflict:
    return Conflict(
        "not_forward",
        f"branch {name!r} of {target.url} has commits that are not here, or somebody works on it "
        "there: pull it and merge, then push a branch of another name",
        name=name,
    )


def transfer_report(
    placed: Mapping[str, tuple[Oid | None, Oid]],
    tags: Mapping[str, Oid],
    new: Mapping[str, Oid],
    carried: ObjectCopyReport | BundleImport,
    target: StoreContext,
) -> TransferReport:
    """Return the report of a transfer that is complete."""
    there = {name: target.refs.get(name, kind="tag") for name in tags}
    return TransferReport(
        branches={name: to_hex(oid) for name, (_, oid) in placed.items()},
        tags={name: to_hex(head.oid) for name, head in there.items() if head is not None},
        moved=[*(name for name, (was, oid) in placed.items() if was != oid), *new],
        kept=[name for name, head in there.items() if head and head.oid != tags[name]],
        objects=carried.objects,
        bytes=carried.bytes,
        known=carried.known,
    )


# Pull from and push to a bundle file instead of another store.
#
# A bundle is one portable file with refs and all objects that they need.


def check_bundle(path: Path) -> None:
    """Check that `path` is a complete bundle, as far as its header and tables show.

    Raises:
        Invalid: If the file is not a bundle.
        NotFound: If the file does not exist.
    """
    _read_bundle_refs(path)


def pull_bundle(
    target: StoreContext,
    path: Path,
    names: Sequence[str],
    *,
    adopt: ArrivalRows,
    progress: Progress | None,
) -> TransferReport:
    """Import branches of a bundle into `target`; all of them if `names` is empty.

    A tag in the bundle becomes a branch, unless `target` already has a tag of that name.
    """
    return run_with_sweep_retry(
        target, lambda: _import_branches(target, path, names, adopt, progress)
    )


def _import_branches(
    target: StoreContext,
    path: Path,
    names: Sequence[str],
    adopt: ArrivalRows,
    progress: Progress | None,
) -> TransferReport:
    refs = _read_bundle_refs(path)
    for name in names:
        if name not in refs:
            raise ref_not_found(name, path)
    with target.writing():
        room = BundleLimits(room=shutil.disk_usage(target.root).free)
        found = bundle.import_bundle(
            target.objects, path, references, limits=room, progress=progress
        )
        target.objects.flush()
        erased = adopt.erasures(found, path.name)
        branches = {name: oid for name, oid in found.refs.items() if not names or name in names}
        known = [name for name in branches if target.refs.get(name, kind="tag") is not None]
        tags = {name: branches.pop(name) for name in known if target.refs.get(name) is None}
        # All objects that the refs need are stored now.
        placed, new = move_heads(
            target,
            target,
            (branches, tags),
            lambda: [*erased, *adopt.effects([*branches.values(), *tags.values()], found.heirs)],
            fast_forward_only=False,
        )
    return transfer_report(placed, tags, new, found, target)


def push_bundle(
    source: StoreContext, path: Path, names: Sequence[str], *, progress: Progress | None
) -> TransferReport:
    """Write branches and tags of `source` to a bundle; all of them if `names` is empty.

    An existing bundle is replaced only if the new one contains everything that it contains.
    Raises:
        Conflict: kind "not_forward", if a commit of the existing bundle would be lost.
    """
    heads = {head.name: head.oid for head in (*source.refs.tags(), *source.refs.branches())}
    for name in names:
        if name not in heads:
            raise ref_not_found(name, source.url)
    chosen = {name: heads[name] for name in names or heads}
    before = _replaced(source, path, chosen)
    if before and before == chosen:
        return TransferReport(
            {name: to_hex(oid) for name, oid in chosen.items()}, {}, [], [], 0, 0, 0
        )
    made = bundle.export_bundle(source.objects, chosen, references, path, progress=progress)
    moved = [name for name, oid in chosen.items() if before.get(name) != oid]
    return TransferReport(made.refs, {}, moved, [], made.objects, made.size, made.resumed)


def _replaced(source: StoreContext, path: Path, chosen: dict[str, Oid]) -> dict[str, Oid]:
    """Return the refs of an existing bundle at `path`, or {} if there is no bundle.

    Raises Conflict("not_forward") unless every ref is equal to or an ancestor of the chosen one.
    """
    try:
        before = _read_bundle_refs(path)
    except (Invalid, NotFound):  # `export_bundle` refuses to replace a file that is not a bundle
        return {}
    for name, oid in before.items():
        new = chosen.get(name)
        if new is None or not (new == oid or _is_descendant(source, oid, new)):
            raise Conflict(
                "not_forward",
                f"{path} holds {name!r} at {to_hex(oid)[:12]}, which would be lost: choose another "
                "file, or pull that one first and name all of its branches",
                name=name,
            )
    return before


def _is_descendant(source: StoreContext, old: Oid, new: Oid) -> bool:
    return source.objects.has(old) and source.history.is_ancestor(old, new)


def _read_bundle_refs(path: Path) -> dict[str, Oid]:
    with BundleFile(path, BundleLimits()) as file:
        return dict(file.header.refs)


# Export to and import from a bundle without naming branches.


def export_refs(
    store: StoreContext, names: Sequence[str], path: Path, *, progress: Progress | None
) -> bundle.BundleReport:
    """Write the commits of these refs to a bundle; see `Transfer.export`."""
    heads = {name: store.refs.resolve(name) for name in names}
    return bundle.export_bundle(store.objects, heads, references, path, progress=progress)


def import_bundle(
    store: StoreContext, path: Path, adopt: ArrivalRows, progress: Progress | None
) -> dict[str, str]:
    """Import a bundle and return the created branches; see `Transfer.import_`."""
    return run_with_sweep_retry(store, lambda: _import(store, path, adopt, progress))


def _import(
    store: StoreContext, path: Path, adopt: ArrivalRows, progress: Progress | None
) -> dict[str, str]:
    with store.writing():
        room = BundleLimits(room=shutil.disk_usage(store.root).free)
        found = bundle.import_bundle(
            store.objects, path, references, limits=room, progress=progress
        )
        store.objects.flush()
        heads, erased = found.refs, adopt.erasures(found, path.name)
        detail = os.fsencode(path.name).decode("utf-8", "replace")
        for _ in range(_MAX_NAME_ATTEMPTS):
            names = _free_branches(store, heads)
            missing = [name for name in names if store.catalog.head(f"branch:{name}") is None]
            moves = [Move(f"branch:{name}", None, names[name]) for name in missing]
            rows = [*erased, *adopt.effects(heads.values(), found.heirs)]
            try:
                store.catalog.move(
                    moves, verb="import", actor=store.author, detail=detail, rows=rows
                )
                break
            except Conflict as error:  # another process created one of the branches concurrently
                if error.kind == "swept":
                    raise
                taken = error
        else:
            raise taken
    return {name: to_hex(oid) for name, oid in names.items()}


def _free_branches(store: StoreContext, heads: Mapping[str, Oid]) -> dict[str, Oid]:
    """Choose branch names for the refs of a bundle.

    A name gets a number if a different branch of that name exists here or in the bundle.
    """
    names: dict[str, Oid] = {}
    for name, oid in heads.items():
        candidate, number = name, 1
        while _is_taken(store, candidate, oid, names):
            number += 1
            candidate = (
                f"{name}-{number}" if is_ref_name(f"{name}-{number}") else f"bundle-{number}"
            )
        names[candidate] = oid
    return names


def _is_taken(store: StoreContext, name: str, oid: Oid, names: Mapping[str, Oid]) -> bool:
    head = store.catalog.head(f"branch:{name}")
    if head is None and name not in names:
        # a workspace reserves its branch name before its first commit
        return store.catalog.row("workspace", name) is not None
    return oid != (head.oid if head else names[name])


class Transfer:
    """Copies branches and tags between stores and bundles."""

    def __init__(self, store: StoreContext, sessions: Callable[[], SessionManager]) -> None:
        self.store = store
        self._sessions = sessions  # a function, because an export needs no session code

    @property
    def _adopt(self) -> ArrivalRows:
        """Functions that return the rows for commits that arrive in this store."""
        from ortet.hub.governance.foreign_erasures import adopt_erasures
        from ortet.sessions.actions.effect_recovery import arriving_rows

        return ArrivalRows(
            lambda imported, name: adopt_erasures(self._sessions(), imported, name),
            lambda tips, heirs: arriving_rows(self._sessions().services, tips, heirs),
        )

    def export(
        self,
        refs: Ref | Sequence[Ref],
        path: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
    ) -> BundleReport:
        """Write commits, with all objects that they need, to one bundle file.

        Args:
            refs: One or several branches, tags or commits.
            path: The file to write.
            progress: Called with (done, total) during the work.

        Raises:
            NotFound: If a ref does not exist.
        """
        chosen = [refs] if isinstance(refs, str | CommitInfo) else refs
        require(LIST, refs=chosen)
        require(PATH, path=path)
        optional(CALLABLE, progress=progress)
        names = [ref_text(ref) for ref in chosen]
        return export_refs(self.store, names, Path(path), progress=progress)

    def import_(
        self, path: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> dict[str, str]:
        """Read a bundle file and create its branches.

        All objects are verified before a branch is created. A branch name that is taken gets a
        number.

        Args:
            path: The bundle file.
            progress: Called with (done, total) during the work.

        Returns:
            Map from branch name to commit id.

        Raises:
            Invalid: If the file is not a bundle.
            Refused: kind "bundle_too_large", if there is not enough free space.
        """
        require(PATH, path=path)
        optional(CALLABLE, progress=progress)
        return import_bundle(self.store, Path(path), self._adopt, progress)

    def pull(
        self,
        other: Transfer | str | os.PathLike[str],
        refs: str | Sequence[str] = (),
        *,
        progress: Progress | None = None,
    ) -> TransferReport:
        """Copy branches and tags from another hub or a bundle into this store.

        Only missing objects are sent, and they are verified. After an interruption, the next call
        does not send the same objects again. A branch that is ahead in the other store moves
        forward here. A branch that has diverged, or is in use here, is created under a name with a
        number.

        Args:
            other: `hub.transfer` of the other hub, or the path of a bundle.
            refs: Names of branches and tags. The default is all.
            progress: Called with (done, total) during the work.

        Raises:
            NotFound: kind "no_ref", if a name does not exist in the other store.
        """
        names = _check_refs(other, refs, progress)
        if isinstance(other, str | os.PathLike):
            return pull_bundle(self.store, Path(other), names, adopt=self._adopt, progress=progress)
        return transfer_refs(
            other.store,
            self.store,
            names,
            adopt=self._adopt,
            fast_forward_only=False,
            progress=progress,
        )

    def push(
        self,
        other: Transfer | str | os.PathLike[str],
        refs: str | Sequence[str] = (),
        *,
        progress: Progress | None = None,
    ) -> TransferReport:
        """Copy branches and tags to another hub or a bundle.

        A bundle file is always written as a whole.

        Args:
            other: `hub.transfer` of the other hub, or the path of a bundle.
            refs: Names of branches and tags. The default is all.
            progress: Called with (done, total) during the work.

        Raises:
            Conflict: kind "not_forward", if a branch has diverged there or is in use there. Nothing
                is sent then.
            NotFound: kind "no_ref", if a name does not exist in this store.
        """
        names = _check_refs(other, refs, progress)
        if isinstance(other, str | os.PathLike):
            return push_bundle(self.store, Path(other), names, progress=progress)
        return transfer_refs(
            self.store,
            other.store,
            names,
            adopt=other._adopt,
            fast_forward_only=True,
            progress=progress,
        )

    # session state without its objects

    def from_carry(self, text: str) -> Session:
        """Open the session that a carry token describes. `Session.carry` makes the token.

        Args:
            text: The carry token.

        Raises:
            Refused: kind "bad_carry", if the token was changed.
            Conflict: kind "stale_carry", if the store has newer events.
            Unsupported: kind "newer_carry", if a later release made the token.
        """
        return self._sessions().from_carry(text)

    def from_checkpoint(
        self, checkpoint: AgentCheckpoint | str | bytes, *, name: str = "", agent: str = ""
    ) -> Session:
        """Create a session with the state of a checkpoint, and open it.

        Effects that were executed once are not executed again, here or in another store. Unsettled
        effects stay unsettled.

        Args:
            checkpoint: The checkpoint, or its JSON text.
            name: Name of the new session. The default is the name in the checkpoint.
            agent: Agent of the new session. The default is the agent in the checkpoint.

        Raises:
            Invalid: kind "bad_checkpoint". The message names the wrong field. Nothing is created.
        """
        return self._sessions().from_checkpoint(checkpoint, name, agent)


def _check_refs(
    other: object, refs: str | Sequence[str], progress: Progress | None
) -> Sequence[str]:
    names = [refs] if isinstance(refs, str) else refs
    require(LIST, refs=names)
    optional(CALLABLE, progress=progress)
    if isinstance(other, str | os.PathLike):
        require(PATH, other=other)
    return names
