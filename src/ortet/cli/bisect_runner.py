"""Runs a bisect search: each candidate commit is tested in a private copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import msgspec

from ortet._util.codec import decode, encode
from ortet.errors import Invalid, NotFound
from ortet.history.bisect import Bisect, BisectResult, BisectState
from ortet.ids import from_hex

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.machines.base import Command, Result
    from ortet.workspaces.table import WorkspaceRow
    from ortet.workspaces.workspace import Workspace

BISECT_ROW_KIND = "bisect"
EXIT_SKIP = 125
EXIT_CANNOT_RUN = (126, 127)
EXIT_SIGNAL_BASE = 128

BisectVerdict = Literal["good", "bad", "skip"]


class BisectSearch(msgspec.Struct, frozen=True):
    """The stored search: its state, the commit to test now, and the private workspace with it."""

    state: BisectState
    current: str = ""
    copy: str = ""


class BisectStep(msgspec.Struct, frozen=True):
    """The result of one test."""

    oid: str
    verdict: BisectVerdict
    exit_code: int
    seconds: float


def open_bisect(hub: Hub, state: BisectState) -> Bisect:
    """Return a Bisect over the commits of a hub."""
    return Bisect(lambda oid: hub.history.info(from_hex(oid)).parents, state)


def load_search(hub: Hub, row: WorkspaceRow) -> BisectSearch:
    """Return the search of a workspace. Raises NotFound("no_bisect") if there is none."""
    found = hub.catalog.row(BISECT_ROW_KIND, row.name)
    if found is None:
        raise NotFound(
            "no_bisect", "no bisect search is running: `ortet bisect start --good REF` begins one"
        )
    return decode(BisectSearch, found.value)


def is_running(hub: Hub, row: WorkspaceRow) -> bool:
    """Return True if a search is stored for this workspace."""
    return hub.catalog.row(BISECT_ROW_KIND, row.name) is not None


def continue_search(hub: Hub, row: WorkspaceRow, state: BisectState) -> BisectSearch | BisectResult:
    """Open the next candidate in a private copy, or end the search and return its result."""
    bisect = open_bisect(hub, state)
    oid = bisect.next()
    if oid is None:
        end_search(hub, row)
        answer = bisect.result()
        assert answer is not None
        return answer
    copy = hub.workspaces.fork(row, None, from_hex(oid), 1)[0]
    search = BisectSearch(state=state, current=oid, copy=copy.name)
    hub.catalog.put_row(BISECT_ROW_KIND, row.name, encode(search))
    return search


def record_verdict(
    hub: Hub, row: WorkspaceRow, verdict: BisectVerdict, oid: str | None
) -> BisectSearch | BisectResult:
    """Record a verdict on the current or a named commit, and continue."""
    search = load_search(hub, row)
    bisect = open_bisect(hub, search.state)
    {"good": bisect.good, "bad": bisect.bad, "skip": bisect.skip}[verdict](oid or search.current)
    drop_copy(hub, search.copy)
    return continue_search(hub, row, bisect.state)


def end_search(hub: Hub, row: WorkspaceRow) -> None:
    """Delete the search and its copy. No error if there is none."""
    if is_running(hub, row):
        drop_copy(hub, load_search(hub, row).copy)
        hub.catalog.drop_row(BISECT_ROW_KIND, row.name)


def drop_copy(hub: Hub, copy: str) -> None:
    """Delete a private copy and its branch. The user may have dropped the copy already."""
    if copy and hub.workspaces.table.get(copy):
        hub.drop(copy, discard=True)
    if copy and hub.refs.get(copy):
        hub.refs.delete(copy, actor=hub.store.author, detail="bisect")


@contextmanager
def private_checkout(hub: Hub, row: WorkspaceRow, oid: str) -> Iterator[Workspace]:
    """Check out a commit in a private workspace that is deleted afterwards."""
    copy = hub.workspaces.fork(row, None, from_hex(oid), 1)[0]
    try:
        yield copy
    finally:
        drop_copy(hub, copy.name)


def search_with_command(
    hub: Hub,
    row: WorkspaceRow,
    state: BisectState,
    *,
    command: Command,
    timeout: float | None,
) -> Iterator[BisectStep | BisectResult]:
    """Run the command on each candidate. The last item yielded is the result."""
    bisect = open_bisect(hub, state)

    def test(oid: str) -> BisectStep:
        with private_checkout(hub, row, oid) as copy:
            result = copy.run(command, timeout=timeout)
        return BisectStep(oid, _verdict(result, oid), result.exit_code, result.duration)

    if test(state.bad).verdict == "good":  # otherwise the search would find a wrong commit
        raise Invalid(
            "not_bad",
            f"{state.bad[:12]} is not bad, the command succeeds there: give --bad another commit",
        )
    while (oid := bisect.next()) is not None:
        step = test(oid)
        verdict = step.verdict
        {"good": bisect.good, "bad": bisect.bad, "skip": bisect.skip}[verdict](oid)
        yield step
    answer = bisect.result()
    assert answer is not None
    yield answer


def _verdict(result: Result, oid: str) -> BisectVerdict:
    """Map an exit code to a verdict: 0 is good, 125 is skip, 1 to 124 is bad.

    A higher code means that the command itself failed, and raises Invalid("bad_command").
    """
    code = result.exit_code
    if code == 0:
        return "good"
    if code == EXIT_SKIP:
        return "skip"
    if code in EXIT_CANNOT_RUN or (code >= EXIT_SIGNAL_BASE and not result.timed_out):
        raise Invalid(
            "bad_command",
            f"on {oid[:12]} the command ended with {code} ({result.stderr.strip()[-200:]}): let it "
            "end with 0 for good, 125 for cannot say, another number up to 124 for bad",
            oid=oid,
            exit_code=code,
        )
    return "bad"
