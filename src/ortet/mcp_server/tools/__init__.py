"""The MCP tools, by topic.

Start with `workspace`: status, commit, run and fork. A tool is a function with the decorator
`tool(...)` of `ortet.mcp_server.tool`; its first parameter is the `McpContext`. It must also be
listed in `ortet.mcp_server.server.TOOLS`, in the order in which clients show tools.

- `workspace`, `history`, `navigation`: files and commits; log and diff; restore, rewind, undo,
  redo.
- `conversation`, `memory`: messages, plan, journal, briefing; facts and recall.
- `effects`: artifacts, and effects of actions.

Invariants:
- A docstring of a tool is its description for the model, and a docstring of a result is in its
  schema.
- `str` of a result is the text for the model. The fields are the structured content.
- A tool that overwrites or forgets takes `agreed` and returns a preview until it is confirmed.

The modules may import `cli` helpers, `sessions`, `history` and other modules of this package.
"""
