"""Messages of a session: context, compaction, tool calls, formats of model providers."""
