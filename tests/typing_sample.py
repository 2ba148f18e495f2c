"""The sample of the public Python API, as a program that type checkers accept without a cast.

`assert_type` fails in mypy if a verb returns another type than the sample says. The program runs in
tests/e2e/test_design_contract.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import assert_type

import ortet


def search(term: str) -> list[str]:
    return [f"{term}.py"]


def summary_of(commit: ortet.CommitInfo) -> tuple[str, str, str]:
    """Users annotate their own functions with the exported names."""
    return commit.oid, commit.state, commit.message


def use_session(hub: ortet.Hub, directory: Path) -> ortet.CommitInfo:
    with hub.session(
        "fix-42",
        agent="default",
        goal="make the suite green",
        workspace=directory,
        files="inplace",
        engine="auto",
        budget={"usd": 5.0, "tokens": 2_000_000},
    ) as s:
        assert_type(s, ortet.Session)
        assert_type(s.say("user", "the login test fails"), ortet.Event)
        s.plan(["reproduce", "fix", "verify"])
        r = s.run("echo failed; exit 1", why="see the failure first")
        assert_type(r, ortet.Result)
        assert_type(r.exit_code, int)
        assert_type(r.stdout, str)
        assert_type(r.stderr, str)
        hits = s.act(search, "parse", why="who calls parse()?")
        assert hits == ["parse.py"]
        s.think("the lexer drops the last token")
        s.note("branch", "fix/lexer", ttl=3600)
        s.ask("may I touch the grammar?")
        fact_id = s.learn("tests need PYTHONPATH=src", about="testing")
        assert_type(fact_id, str)
        s.lesson("mocking the clock hid the bug")
        s.decide("patch the lexer", why="smallest change", instead_of=["rewrite parser"])
        (directory / "report.md").write_text("done\n")
        assert_type(s.artifact("report.md", kind="report"), ortet.Artifact)
        s.spend(tokens=1200, usd=0.01)
        c = s.commit("reproduced")
        assert_type(c, ortet.CommitInfo)
        assert_type(c.parents, list[str])
        assert_type(c.time, int)
        read_session(s)
        kids = s.fork(2)
        assert_type(kids, list[ortet.Session])
        kids[0].learn("the second line is empty")
        merged = s.merge(kids[0])
        assert_type(merged, ortet.SessionMergeResult)
        assert_type(s.adopt(kids[1]), ortet.RestoreResult)
        assert_type(s.diff(c.oid), list[ortet.TreeChange])
        assert_type(s.restore(c), ortet.RestoreResult)
        assert_type(s.restore(c.oid, only=None), ortet.RestoreResult)
        s.compact(keep_last=20)
    return c


def read_session(s: ortet.SessionReader) -> None:
    assert_type(s.messages(), list[ortet.Message])
    assert_type(s.facts(), list[ortet.Fact])
    assert_type(s.events(), Iterator[ortet.Event])
    assert_type(s.effects(), list[ortet.Effect])
    assert_type(s.conversation.decisions(), list[ortet.Decision])
    assert_type(s.artifacts(), list[ortet.Artifact])
    assert_type(s.briefing(tokens=2000), ortet.Briefing)
    assert_type(s.context("how to run tests?", tokens=8000), ortet.ModelContext)
    for hit in s.recall("how to run tests?", k=5):
        assert_type(hit, ortet.RecallHit)
        assert_type(hit.text, str)
        assert_type(hit.score, float)
    assert_type(s.status, str)
    assert_type(s.head, ortet.CommitInfo | None)


def use_workspace(hub: ortet.Hub, directory: Path) -> None:
    with hub.workspace(directory) as ws:
        assert_type(ws, ortet.Workspace)
        assert_type(ws.path, Path)
        assert_type(ws.status(), ortet.WorkspaceStatus)
        works = ws.commit("it works")
        assert_type(works, ortet.CommitInfo)
        (attempt,) = ws.fork(1)
        attempt.run("echo more > more.txt", timeout=60)
        assert_type(attempt.land(), ortet.Report)
        ws.commit("landed")
        assert_type(ws.rewind(), ortet.Report)
        assert_type(ws.restore(works), ortet.Report)


def use_hub(hub: ortet.Hub, commit: ortet.CommitInfo, directory: Path) -> None:
    assert_type(hub.sessions(), list[ortet.SessionRow])
    assert_type(hub.get("fix-42"), ortet.SessionReader)
    assert_type(hub.log("fix-42"), list[ortet.CommitInfo])
    assert_type(hub.verify(), ortet.VerifyReport)
    assert_type(hub.sweep(), ortet.SweepReport)
    assert_type(hub.export(commit, directory / "fix.bundle"), ortet.BundleReport)
    assert_type(hub.import_(directory / "fix.bundle"), dict[str, str])
    assert_type(hub.restore(commit, to=directory / "restored"), ortet.Report)


def main(store: Path, directory: Path) -> None:
    """Run the whole sample on a new store; `directory` must be empty."""
    project, plain = directory / "project", directory / "plain"
    project.mkdir()
    plain.mkdir()
    with ortet.open(store) as hub:
        assert_type(hub, ortet.Hub)
        commit = use_session(hub, project)
        assert summary_of(commit)[2] == "reproduced"
        use_workspace(hub, plain)
        use_hub(hub, commit, directory)
