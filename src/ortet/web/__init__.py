"""The web page of a server: HTML pages about sessions, commits, memory, budgets and storage.

Start with `routes.page_routes`, the table of pages. A page is a function in `views/` that takes a
`request.PageRequest` and returns a Response. `templates` sets up Jinja; `static_files` serves
scripts and styles.

Invariants:
- Pages only read. A change is an HTTP request of the page's script to the operations of the server.
- A page shows only sessions and commits that the caller's token may see.
- Templates escape all text. Scripts come from our own files only (Content-Security-Policy).
- A page is drawn in a request thread, so it may block.

The package may import `hub`, `sessions` and layers below, output helpers of `cli`, and `context`,
`auth`, `schemas`, `streaming` and `session_pool` of the server. Only `server.app` imports this
package.
"""
