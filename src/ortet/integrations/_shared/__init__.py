"""Code that several adapters share: session pool, messages, session names, action summaries.

This is the documented place for what an adapter needs of a session beyond its public verbs.

Start with `session_pool.AdapterSessionPool`. It opens sessions for a framework that calls from any
thread or event loop, and returns a session when another process requests it. It also
maps the conversation ids of a framework to session names.

- `messages`: append, load, replace and clear messages of any size.
- `actions`: actions, steps and approval answers, as the surfaces show them.

Invariant: only one thread of this process uses the sessions of a pool at a time.

This package may import `config`, `hub`, `sessions` and the layers below, but no adapter.
"""
