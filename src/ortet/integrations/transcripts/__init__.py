"""Imports transcripts of other coding agents (Claude Code, Codex) into sessions.

Start with `importer.import_transcript`. It reads from the journal which lines were already
imported.

- `locate`: finds transcript files on disk.
- `lines`: reads the lines of a file in bounded memory.
- `line_tree`: splits lines into conversations and abandoned branches.
- `claude_code`, `codex`: translate the lines of one tool to journal events.
- `tool_calls`: converts tool calls to effects and changed files to artifacts.
- `batch`: appends translated lines to a session.

Invariants:

- A line is imported once; importing a file that has grown adds only the new lines.
- The journal alone records what was imported.
- A line that is not understood is stored unchanged.

This package may import `integrations._shared`, `config`, `hub`, `sessions` and the layers below.
"""
