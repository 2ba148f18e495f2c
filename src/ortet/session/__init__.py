"""Hub, workspace and session: an opened store, and lifecycle over graph, journal and machine."""
