"""Facts, episodes, recall and shared memory of a session."""
