"""Rule-based extraction of facts, summaries and contradictions from text."""
