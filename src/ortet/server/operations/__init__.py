"""The HTTP operations, one module for each noun.

Start with `registry`: the decorator `operation` puts a function into the table, from which routes,
checks and the OpenAPI document are built. Then read `sessions`, which begins, lists and ends
sessions.

To add an operation, write a function with a request struct and a response type, decorate it, and
put it into the module of its noun. A new module must be added to `registry.OPERATION_TAGS`.

Invariants:
- Docstrings of the modules, functions and structs are texts of the OpenAPI document.
- The first parameter decides what the function works on, and so the lease and the checks.
- An operation on all sessions is refused to a token that is limited to agents, unless it filters.
- An operation that touches the server's host has `needs_host`, or calls `auth.host_access`.

Operations know no HTTP types. They may import `hub`, `sessions` and layers below, helpers of `cli`
and `integrations._shared`, and `schemas`, `pagination`, `auth` and `session_pool` of the server.
"""
