"""Directory trees as Merkle pages."""
