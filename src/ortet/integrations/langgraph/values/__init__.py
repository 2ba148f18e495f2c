"""Values of LangGraph channels as parts that are stored once."""
