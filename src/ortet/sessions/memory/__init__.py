"""Facts, episodes, recall and shared memory of a session.

Start with `session_memory.py`, the facet of a session. `facts.py` has the facts that it sees,
its own and shared ones, how it publishes facts, and contradictions. Then:

- `shared_scopes`: the shared memories of agents, users and projects, each an event log;
- `recall`: search over events of sessions and scopes;
- `context`: model context with recalled facts, working memory, and the briefing for the next
  worker;
- `episodes` and `consolidate`: summaries of what happened, and facts extracted from them;
- `report`: Markdown, differences between commits.

Invariants: a fact is an event; retracting it is an event too, and both stay recorded. A shared fact
is published only after a commit holds it. A fork or restored session sees the shared facts of its
commit until it publishes or refreshes. Recall changes nothing.

Imports: `sessions.history`, `ortet.memory`, `journal`, `ortet.history`, `objects`, `backends` and
below.
"""
