"""Actions, effects, approvals, budget and artifacts of a session."""
