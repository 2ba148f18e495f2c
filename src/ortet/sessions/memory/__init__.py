"""Facts, episodes, recall and shared memory of a session.

Start with `facts.py`, the reading verbs of a session. Then:

- `believing`: the facts that a session sees, its own and shared ones, and how it publishes facts;
- `shared_scopes`: the shared memories of agents, users and projects, each an event log;
- `recall` and `documents`: search over events of sessions and scopes;
- `context` and `at_hand`: model context with recalled facts, and working memory;
- `episodes` and `consolidate`: summaries of what happened, and facts extracted from them;
- `opposing` and `report`: contradictions, Markdown, differences between commits.

Invariants: a fact is an event; retracting it is an event too, and both stay recorded. A shared fact
is published only after a commit holds it. A fork or restored session sees the shared facts of its
commit until it publishes or refreshes. Recall changes nothing.

Imports: `sessions.history`, `ortet.memory`, `journal`, `ortet.history`, `objects`, `backends` and
below.
"""
