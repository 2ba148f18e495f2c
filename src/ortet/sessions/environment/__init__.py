"""The environment of a session: variables, git state, external state, handover."""
