"""How events of a session are written: lease, inbox, automatic commits, state cache."""
