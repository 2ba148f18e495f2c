"""Memory of agents: recall by words and by meaning."""
