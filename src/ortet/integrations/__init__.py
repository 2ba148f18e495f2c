"""Adapters for agent frameworks, importers of transcripts, and trace export.

Each adapter implements the storage interface of one agent framework on an open Ortet hub.

Start with the package of the framework; each one exports its public classes:

- `langgraph`: a checkpointer and a long-term store
- `openai_agents`: a session of the OpenAI Agents SDK
- `adk`: session, artifact and memory services of the Agent Development Kit
- `claude`: a session store of the Claude Agent SDK
- `pydantic_ai`: message history
- `agent_framework`: chat history and workflow checkpoints
- `transcripts`: imports Claude Code and Codex transcripts
- `otel_export`: exports a session as OpenTelemetry spans
- `_shared`: session pool, messages and session names that the adapters have in common

Invariants:

- A conversation of a framework is one session. Its messages are ordinary journal messages.
- What a write method was given is durable when the method returns.
- Framework packages are optional. Importing an adapter without its package raises Unsupported.

Adapters may import `config`, `hub`, `sessions` and the layers below. They do not import each other,
except `_shared`.
"""
