"""Checkpoints that carry a workspace: time travel gives its files back."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph

from ortet.errors import Conflict
from ortet.hub.hub import Hub
from ortet.integrations.langgraph import OrtetSaver

pytestmark = pytest.mark.files({"README": "as it was"})

OF: RunnableConfig = {"configurable": {"thread_id": "build"}}


class Work(TypedDict):
    word: str
    seen: Annotated[list[str], operator.add]


def graph(saver: OrtetSaver, work: Path) -> Any:
    """Two steps, each of which reads and writes files as a shell command would."""

    def first(state: Work) -> dict[str, Any]:
        (work / "first.txt").write_text(state["word"])
        return {"seen": [f"first {state['word']}"]}

    def second(state: Work) -> dict[str, Any]:
        names = " ".join(sorted(path.name for path in work.iterdir()))
        (work / "first.txt").unlink()
        (work / "second.txt").write_text(state["word"])
        return {"seen": [names]}

    builder = StateGraph(Work)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile(checkpointer=saver)


def files(work: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(work.iterdir())}


def test_a_run_from_an_earlier_checkpoint_restores_its_files(hub: Hub, work: Path) -> None:
    mine = graph(OrtetSaver(hub, workspace=work), work)
    mine.invoke({"word": "one", "seen": []}, OF, durability="sync")
    after = {"README": "as it was", "second.txt": "one"}
    assert files(work) == after
    between = next(state for state in mine.get_state_history(OF) if state.next == ("second",))
    # looking changes nothing
    assert mine.get_state(between.config).values["seen"] == ["first one"]
    assert files(work) == after
    # a run from there has the files of then; what nobody committed is not lost
    (work / "README").write_text("changed since")
    done = mine.invoke(None, between.config, durability="sync")
    assert done["seen"] == ["first one", "README first.txt"]
    assert files(work) == after
    # an update there, too
    changed = mine.update_state(between.config, {"word": "two"})
    assert files(work) == {"README": "as it was", "first.txt": "one"}
    mine.invoke(None, changed, durability="sync")
    assert files(work) == {"README": "as it was", "second.txt": "two"}
    commits = hub.log("build")
    assert any(
        hub.diff(one.parents[0], one.oid) and "before restore" in one.message
        for one in commits
        if one.parents
    )


def test_a_new_saver_continues_with_the_files_of_the_thread(hub: Hub, work: Path) -> None:
    saver = OrtetSaver(hub, workspace=work)
    graph(saver, work).invoke({"word": "one", "seen": []}, OF, durability="sync")
    saver.close()
    mine = graph(OrtetSaver(hub, workspace=work), work)
    begun = next(state for state in mine.get_state_history(OF) if state.next == ("first",))
    mine.invoke(None, begun.config, durability="sync")
    assert files(work) == {"README": "as it was", "second.txt": "one"}
    assert hub.verify()


def test_a_workspace_directory_belongs_to_one_thread(hub: Hub, work: Path, tmp_path: Path) -> None:
    saver = OrtetSaver(hub, workspace=work)
    graph(saver, work).invoke({"word": "one", "seen": []}, OF)
    with pytest.raises(Conflict, match="belongs to session"):
        graph(saver, work).invoke({"word": "x", "seen": []}, {"configurable": {"thread_id": "2"}})

    def own(thread: str) -> Path:
        found = tmp_path / f"of-{thread}"
        found.mkdir(exist_ok=True)
        return found

    each = OrtetSaver(hub, workspace=own)
    for thread in ("3", "4"):
        config: RunnableConfig = {"configurable": {"thread_id": thread}}
        graph(each, own(thread)).invoke({"word": thread, "seen": []}, config)
        assert files(own(thread)) == {"second.txt": thread}
