"""Machines: where an agent's commands run, and the files they change. Engines say how."""
