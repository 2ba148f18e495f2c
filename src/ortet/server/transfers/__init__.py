"""Uploads and downloads of any size: artifacts, files, bundles, journals.

Start with `routes.STREAMING_ROUTES`, the table of all routes that stream, including those of
`streaming`. `uploads.receive_upload` stores a request body; `content.ContentResponse` sends stored
content.

- `artifacts`, `bundles`, `exports`: one kind of content each.
- `commit_files`: files of a commit.
- `workspace_files`: files of a workspace as they are now. It opens paths below a directory without
  following links.

Invariants:
- A body is never held in memory as a whole. It is written to an unnamed file, which a crash
  removes.
- Content that agents made is served in a sandbox without scripts.
- No path leads out of a workspace, even if programs change the directory at the same time.

Docstrings of handlers, of their request and response types, and of their modules are OpenAPI texts.
The package may import `streaming`, `session_pool`, `middleware.idempotency` and `auth` of the
server, and layers below.
"""
