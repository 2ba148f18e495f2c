"""Hub, workspace and (later) session: lifecycle over graph and machine."""
