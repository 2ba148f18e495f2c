"""Model Context Protocol (MCP) server for coding agents: `ortet mcp`.

Start with `transports`, which serves stdio or HTTP, and `server.McpHandlers`, which answers
requests of the SDK. `server.TOOLS` lists all tools. `context.McpContext` finds the store,
directory and session.

- `tool`: turns a typed function into a tool with schemas. The functions are in `tools/`.
- `worker`: runs one call at a time in a thread, and kills its command if the call is cancelled.
- `confirm`: asks the user before a tool that overwrites or forgets something.
- `resources`, `prompts`: recorded content by address, and prompt texts.
- `hooks`: records the hook events of a coding agent in a session (`ortet hook`).

Invariants:
- A session is open only during one call, so that other processes can use it between calls.
- Names of tools never change, and fields of results are those of `--json`.
- A confirmed tool does nothing until exactly the previewed commit or fact was agreed to.

Docstrings of tools and of their result types are texts for the model. The package may import
`config` and layers below, and helpers of `cli`. It does not import `server` or `web`.
"""
