"""The state of a session: records, reducers and three-way merge."""
