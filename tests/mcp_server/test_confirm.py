"""Tools that overwrite or forget return a preview first, and act once it is confirmed."""

from __future__ import annotations

import sys
from typing import Any

import mcp_types as types
import pytest
from tests.fixtures import forked
from tests.fixtures.mcp_project import ERAS, WAYS, Agent, Project, drive


async def three_commits(project: Project, agent: Agent) -> list[str]:
    made = []
    for number in ("one", "two", "three"):
        project.write("a.txt", number)
        await agent.ok("say", role="user", content=number)
        made.append((await agent.ok("commit", message=number))["commit"]["oid"])
    return made


def asking(action: str, **content: Any) -> tuple[Any, list[str]]:
    """A client whose user answers so, and the questions that were put."""
    questions: list[str] = []

    async def answer(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        questions.append(params.message)
        return types.ElicitResult(action=action, content=content or None)  # type: ignore[arg-type]

    return answer, questions


@pytest.mark.parametrize("way", WAYS)
def test_second_call_must_confirm_the_commit_that_the_first_one_showed(
    project: Project, way: str
) -> None:
    async def work() -> None:
        async with project.agent(way=way) as agent:
            one, _, three = await three_commits(project, agent)
            project.write("b.txt", "not committed")
            told = await agent("restore", ref=one[:10])
            assert not told.data["done"] and told.data["confirm"] == one and one in told.text
            kinds = {change["path"]: change["kind"] for change in told.data["changes"]}
            assert kinds == {"a.txt": "modified", "b.txt": "removed"}
            assert told.data["forgotten"] == 2
            assert (project.path / "a.txt").read_text() == "three"
            wrong = await agent.ok("restore", ref=one, confirm=three)
            assert not wrong["done"] and (project.path / "b.txt").exists()
            done = await agent.ok("restore", ref=one, confirm=one)
            assert done["done"] and done["head"] == one
            assert (project.path / "a.txt").read_text() == "one"
            assert not (project.path / "b.txt").exists()
            messages = (await agent.ok("context"))["messages"]
            assert [message["content"] for message in messages] == ["one"]

    drive(work)


def test_rewind_undo_and_redo_need_confirmation_of_the_target(project: Project) -> None:
    async def work() -> None:
        async with project.agent() as agent:
            one, two, three = await three_commits(project, agent)
            for tool, words, target, text in (
                ("rewind", {"n": 2}, one, "one"),
                ("undo", {}, three, "three"),
                ("undo", {}, two, "two"),
                ("redo", {}, three, "three"),
            ):
                told = await agent.ok(tool, **words)
                assert (told["done"], told["confirm"]) == (False, target), tool
                assert (await agent.ok(tool, **words, confirm=target))["done"]
                assert (project.path / "a.txt").read_text() == text
            project.write("a.txt", "spoilt")
            told = await agent.ok("undo")
            assert told["confirm"] == three
            assert (await agent.ok("undo", confirm=three))["done"]
            assert (project.path / "a.txt").read_text() == "three"

    drive(work)


def test_restore_with_only_files_keeps_the_session_state(project: Project) -> None:
    async def work() -> None:
        async with project.agent("--allow-destructive") as agent:
            one, *_ = await three_commits(project, agent)
            done = await agent.ok("restore", ref=one, only=["files"])
            assert done["done"] and (project.path / "a.txt").read_text() == "one"
            assert len((await agent.ok("context"))["messages"]) == 3
            assert (await agent("restore", ref=one, only=["soul"])).kind == "bad_arguments"

    drive(work)


def test_forget_shows_the_fact_first(project: Project) -> None:
    async def work() -> None:
        async with project.agent() as agent:
            fact = (await agent.ok("learn", text="deploys run on Fridays"))["id"]
            told = await agent("forget", fact=fact[-6:])
            assert "deploys run on Fridays" in told.text and told.data["confirm"] == fact
            assert len((await agent.ok("facts"))["facts"]) == 1
            done = await agent.ok("forget", fact=fact, why="they moved", confirm=fact)
            assert done["done"] and (await agent.ok("facts"))["facts"] == []
            (past,) = (await agent.ok("facts", past=True))["facts"]
            assert past["why"] == "they moved"
            assert (await agent("forget", fact=fact, confirm=fact)).kind == "no_fact"

    drive(work)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("era", ERAS)
def test_a_client_that_can_ask_asks_its_user(project: Project, way: str, era: str) -> None:
    answer, questions = asking("accept", confirm=True)

    async def work() -> None:
        async with project.agent(way=way, mode=era, elicitation_callback=answer) as agent:
            one, *_ = await three_commits(project, agent)
            done = await agent.ok("restore", ref=one)
            assert done["done"] and (project.path / "a.txt").read_text() == "one"
            (question,) = questions
            assert "would go to" in question and "a.txt" in question
            assert "confirm=" not in question

    drive(work)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("action", "content"),
    [("decline", {}), ("cancel", {}), ("accept", {"confirm": False}), ("accept", {})],
)
def test_user_who_declines_prevents_the_restore(
    project: Project, era: str, action: str, content: dict[str, Any]
) -> None:
    """A model that knows the id cannot do it over the head of a user who can be asked."""
    answer, questions = asking(action, **content)

    async def work() -> None:
        async with project.agent(mode=era, elicitation_callback=answer) as agent:
            one, *_ = await three_commits(project, agent)
            refused = await agent("restore", ref=one, confirm=one)
            assert refused.kind == "not_confirmed"
            assert (project.path / "a.txt").read_text() == "three"
            assert len(questions) == 1

    drive(work)


def test_allow_destructive_flag_asks_no_confirmation(project: Project) -> None:
    answer, questions = asking("decline")

    async def work() -> None:
        async with project.agent("--allow-destructive", elicitation_callback=answer) as agent:
            await three_commits(project, agent)
            assert (await agent.ok("rewind"))["done"]
            assert questions == [] and (project.path / "a.txt").read_text() == "two"

    drive(work)


def test_rewind_preview_lists_effects_outside_of_the_workspace(project: Project) -> None:
    script = (
        "import ortet\n"
        "with ortet.open() as hub, hub.session('proj') as s:\n"
        "    s.act(print, 'to ann', name='mail', why='notify the customer')\n"
    )
    project.write("../mail.py", script)

    async def work() -> None:
        async with project.agent() as agent:
            await three_commits(project, agent)
            await agent.ok("run", command="true", why="only in the workspace")
            words = [sys.executable, "../mail.py"]
            forked.run(words, cwd=project.path, env=project.env, check=True)
            await agent.ok("commit", message="ran")
            told = await agent("rewind")
            assert [deed["why"] for deed in told.data["deeds"]] == ["notify the customer"]
            assert "not undone" in told.text

    drive(work)


def test_undo_rewind_and_restore_without_a_commit_are_refused(project: Project) -> None:
    async def work() -> None:
        async with project.agent() as agent:
            for tool, words in (("undo", {}), ("rewind", {}), ("restore", {"ref": "HEAD"})):
                assert (await agent(tool, **words)).kind == "no_session"
            await agent.ok("think", text="first")
            for tool, words in (("undo", {}), ("rewind", {}), ("restore", {"ref": "HEAD"})):
                assert (await agent(tool, **words)).kind == "no_commit"

    drive(work)
