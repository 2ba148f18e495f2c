"""The search for the commit that broke something: each candidate in a private copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import msgspec

from ortet._util.codec import decode, encode
from ortet.errors import Invalid, NotFound
from ortet.history.bisect import Answer, Bisect, BisectState
from ortet.ids import from_hex

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.machines.base import Command, Result
    from ortet.workspaces.table import WorkspaceRow
    from ortet.workspaces.workspace import Workspace

KIND = "bisect"
SKIP = 125
CANNOT_RUN = (126, 127)
KILLED = 128

Verdict = Literal["good", "bad", "skip"]


class Search(msgspec.Struct, frozen=True):
    """What is known so far, the commit to test now, and the private workspace that holds it."""

    state: BisectState
    current: str = ""
    copy: str = ""


class Step(msgspec.Struct, frozen=True):
    oid: str
    verdict: Verdict
    exit_code: int
    seconds: float


def bisect_of(hub: Hub, state: BisectState) -> Bisect:
    return Bisect(lambda oid: hub.history.info(from_hex(oid)).parents, state)


def load(hub: Hub, row: WorkspaceRow) -> Search:
    found = hub.catalog.row(KIND, row.name)
    if found is None:
        raise NotFound(
            "no_bisect", "no search is under way: `ortet bisect start --good REF` begins one"
        )
    return decode(Search, found.value)


def running(hub: Hub, row: WorkspaceRow) -> bool:
    return hub.catalog.row(KIND, row.name) is not None


def go_on(hub: Hub, row: WorkspaceRow, state: BisectState) -> Search | Answer:
    """Open the next candidate in a private copy; or end the search with its answer."""
    bisect = bisect_of(hub, state)
    oid = bisect.next()
    if oid is None:
        end(hub, row)
        answer = bisect.answer()
        assert answer is not None
        return answer
    copy = hub.fork(row, None, from_hex(oid), 1)[0]
    search = Search(state=state, current=oid, copy=copy.name)
    hub.catalog.put_row(KIND, row.name, encode(search))
    return search


def judge(hub: Hub, row: WorkspaceRow, verdict: Verdict, oid: str | None) -> Search | Answer:
    """Take a verdict on the current (or a named) commit and go on."""
    search = load(hub, row)
    bisect = bisect_of(hub, search.state)
    {"good": bisect.good, "bad": bisect.bad, "skip": bisect.skip}[verdict](oid or search.current)
    forget(hub, search.copy)
    return go_on(hub, row, bisect.state)


def end(hub: Hub, row: WorkspaceRow) -> None:
    """Forget the search and its copy; no error when there is none."""
    if running(hub, row):
        forget(hub, load(hub, row).copy)
        hub.catalog.drop_row(KIND, row.name)


def forget(hub: Hub, copy: str) -> None:
    """Remove a private copy and its branch; the user may have dropped it already."""
    if copy and hub.registry.get(copy):
        hub.drop(copy, discard=True)
    if copy and hub.refs.get(copy):
        hub.refs.delete(copy, actor=hub.author, detail="bisect")


@contextmanager
def trial(hub: Hub, row: WorkspaceRow, oid: str) -> Iterator[Workspace]:
    """A commit, fresh, in a private workspace that is gone afterwards."""
    copy = hub.fork(row, None, from_hex(oid), 1)[0]
    try:
        yield copy
    finally:
        forget(hub, copy.name)


def try_all(
    hub: Hub,
    row: WorkspaceRow,
    state: BisectState,
    *,
    command: Command,
    timeout: float | None,
) -> Iterator[Step | Answer]:
    """Run the command on candidate after candidate; the last thing yielded is the answer."""
    bisect = bisect_of(hub, state)

    def test(oid: str) -> Step:
        with trial(hub, row, oid) as copy:
            result = copy.run(command, timeout=timeout)
        return Step(oid, _verdict(result, oid), result.exit_code, result.duration)

    if test(state.bad).verdict == "good":  # else all that follows would blame the wrong one
        raise Invalid(
            "not_bad",
            f"{state.bad[:12]} is not bad, the command succeeds there: give --bad another commit",
        )
    while (oid := bisect.next()) is not None:
        step = test(oid)
        verdict = step.verdict
        {"good": bisect.good, "bad": bisect.bad, "skip": bisect.skip}[verdict](oid)
        yield step
    answer = bisect.answer()
    assert answer is not None
    yield answer


def _verdict(result: Result, oid: str) -> Verdict:
    """0 good, 125 cannot be tested, up to 127 bad; more is a command that broke, not the code."""
    code = result.exit_code
    if code == 0:
        return "good"
    if code == SKIP:
        return "skip"
    if code in CANNOT_RUN or (code >= KILLED and not result.timed_out):
        raise Invalid(
            "bad_command",
            f"on {oid[:12]} the command ended with {code} ({result.stderr.strip()[-200:]}): let it "
            "end with 0 for good, 125 for cannot say, another number up to 124 for bad",
            oid=oid,
            exit_code=code,
        )
    return "bad"
