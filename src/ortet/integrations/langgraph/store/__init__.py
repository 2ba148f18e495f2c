"""The long-term store of LangGraph."""
