"""Actions, effects, approvals, budget and artifacts of a session.

Start with `effects.py`: `EffectLog` records each action before and after it runs. Then:

- `actions`: the `@ortet.action` decorator, replay modes, idempotency keys and call digests;
- `approvals`: actions that wait for a human, and the index of open requests;
- `budget`, `budget_math` and `bill`: limits and spends of a family of sessions;
- `artifacts`: stored files with names and versions;
- `model_calls`: recorded calls of a model;
- `session_actions`, `accounting` and `artifact_store`: the facets of a session for these.

Invariants: the intent of an action is durable before it runs. An action with a key runs once in its
scope. Effects and spends are rows of the family and survive every restore. A spend is never refused
after the fact: it is recorded, and then the session pauses.

Imports: `sessions.writing`, `sessions.environment`, `workspaces`, `store`, `journal`, `history`,
`objects`, `backends` and below.
"""
