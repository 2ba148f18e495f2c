"""Actions, effects, approvals, budget and artifacts of a session.

Start with `effects.py`: `EffectLog` records each action before and after it runs. Then:

- `actions`: the `@ortet.action` decorator, replay modes, idempotency keys and call digests;
- `approvals`: actions that wait for a human, and the index of open requests;
- `budget`, `budget_math` and `bill`: limits and spends of a family of sessions;
- `artifacts`: stored content with names and versions, and its facet `ArtifactStore`;
- `accounting`: recorded calls of a model, and the facet for spends, limits and model calls;
- `session_actions`: the facet for actions, effects and approvals.

Invariants: the intent of an action is durable before it runs. An action with a key runs once in its
scope. Effects and spends are rows of the family and survive every restore. A spend is never refused
after the fact: it is recorded, and then the session pauses.

Imports: `sessions.writing`, `sessions.environment`, `workspaces`, `store`, `journal`, `history`,
`objects`, `backends` and below.
"""
