"""Checkpoints that carry a workspace: time travel gives its files back."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph

import ortet
from ortet.errors import Conflict
from ortet.session.hub import Hub
from ortet.surface.langgraph import OrtetSaver

OF: RunnableConfig = {"configurable": {"thread_id": "build"}}


class Work(TypedDict):
    word: str
    seen: Annotated[list[str], operator.add]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "README").write_text("as it was")
    return place


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with ortet.open(tmp_path / "store") as hub:
        yield hub


def graph(saver: OrtetSaver, place: Path) -> Any:
    """Two steps, each of which reads and writes files as a shell command would."""

    def first(state: Work) -> dict[str, Any]:
        (place / "first.txt").write_text(state["word"])
        return {"seen": [f"first {state['word']}"]}

    def second(state: Work) -> dict[str, Any]:
        names = " ".join(sorted(path.name for path in place.iterdir()))
        (place / "first.txt").unlink()
        (place / "second.txt").write_text(state["word"])
        return {"seen": [names]}

    builder = StateGraph(Work)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile(checkpointer=saver)


def files(place: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(place.iterdir())}


def test_a_run_from_an_earlier_checkpoint_restores_its_files(hub: Hub, place: Path) -> None:
    mine = graph(OrtetSaver(hub, workspace=place), place)
    mine.invoke({"word": "one", "seen": []}, OF, durability="sync")
    after = {"README": "as it was", "second.txt": "one"}
    assert files(place) == after
    between = next(state for state in mine.get_state_history(OF) if state.next == ("second",))
    # looking changes nothing
    assert mine.get_state(between.config).values["seen"] == ["first one"]
    assert files(place) == after
    # a run from there has the files of then; what nobody committed is not lost
    (place / "README").write_text("changed since")
    done = mine.invoke(None, between.config, durability="sync")
    assert done["seen"] == ["first one", "README first.txt"]
    assert files(place) == after
    # an update there, too
    changed = mine.update_state(between.config, {"word": "two"})
    assert files(place) == {"README": "as it was", "first.txt": "one"}
    mine.invoke(None, changed, durability="sync")
    assert files(place) == {"README": "as it was", "second.txt": "two"}
    commits = hub.log("build")
    assert any(
        hub.diff(one.parents[0], one.oid) and "before restore" in one.message
        for one in commits
        if one.parents
    )


def test_a_new_saver_continues_with_the_files_of_the_thread(hub: Hub, place: Path) -> None:
    saver = OrtetSaver(hub, workspace=place)
    graph(saver, place).invoke({"word": "one", "seen": []}, OF, durability="sync")
    saver.close()
    mine = graph(OrtetSaver(hub, workspace=place), place)
    begun = next(state for state in mine.get_state_history(OF) if state.next == ("first",))
    mine.invoke(None, begun.config, durability="sync")
    assert files(place) == {"README": "as it was", "second.txt": "one"}
    assert hub.verify()


def test_a_workspace_directory_belongs_to_one_thread(hub: Hub, place: Path, tmp_path: Path) -> None:
    saver = OrtetSaver(hub, workspace=place)
    graph(saver, place).invoke({"word": "one", "seen": []}, OF)
    with pytest.raises(Conflict, match="belongs to session"):
        graph(saver, place).invoke({"word": "x", "seen": []}, {"configurable": {"thread_id": "2"}})

    def own(thread: str) -> Path:
        found = tmp_path / f"of-{thread}"
        found.mkdir(exist_ok=True)
        return found

    each = OrtetSaver(hub, workspace=own)
    for thread in ("3", "4"):
        config: RunnableConfig = {"configurable": {"thread_id": thread}}
        graph(each, own(thread)).invoke({"word": thread, "seen": []}, config)
        assert files(own(thread)) == {"second.txt": thread}
