"""What an agent remembers: found again by words and meaning, and where it was learned."""
