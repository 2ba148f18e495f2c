"""Sessions: one agent with its journal, memory, files and budget."""
