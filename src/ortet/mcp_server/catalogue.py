"""The list of all tools, in the order in which clients show them. Names never change.

A module of its own, because it imports every tool module.
"""

from __future__ import annotations

from ortet.mcp_server.tools import conversation, effects, history, memory, navigation, workspace

TOOLS = (
    workspace.status,
    workspace.commit,
    history.log,
    history.diff,
    navigation.restore,
    navigation.rewind,
    navigation.undo,
    navigation.redo,
    workspace.fork,
    workspace.run,
    conversation.say,
    conversation.think,
    conversation.journal,
    conversation.brief,
    conversation.context,
    conversation.decide,
    conversation.plan,
    conversation.advance,
    conversation.note,
    conversation.finish,
    memory.learn,
    memory.recall,
    memory.facts,
    memory.forget,
    effects.artifact,
    effects.artifacts,
    effects.artifact_data,
    effects.effects,
    effects.settle,
)
