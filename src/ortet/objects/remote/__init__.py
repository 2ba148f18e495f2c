"""Objects whose packs are stored in a remote bucket."""
