"""Reports made from the state of a session: briefing, progress log and checkpoint.

- `briefing.make_briefing`: the state of an agent as Markdown and data, within a number of tokens.
  The event kinds define its sections, their lines and their worth.
- `progress.ProgressLog`: the plan with outcomes, and a log of actions.
- `checkpoint.AgentCheckpoint`: the portable JSON record, with a published schema.

Invariants: a report never contains a secret. Fields of a checkpoint are only added, never removed.

Imports: `journal` modules, `_util` and `errors`.
"""
