"""The list of all tools, in the order of the list that a client shows. Names never change."""

from __future__ import annotations

from ortet.surface.mcp import deeds, history, memories, minds, moving, work

TOOLS = (
    work.status,
    work.commit,
    history.log,
    history.diff,
    moving.restore,
    moving.rewind,
    moving.undo,
    moving.redo,
    work.fork,
    work.run,
    minds.say,
    minds.think,
    minds.journal,
    minds.brief,
    minds.context,
    minds.decide,
    minds.plan,
    minds.advance,
    minds.note,
    memories.learn,
    memories.recall,
    memories.facts,
    memories.forget,
    deeds.artifact,
    deeds.artifacts,
    deeds.artifact_data,
    deeds.effects,
    deeds.settle,
)
