"""The web page of a server: a store as people see it, drawn here, kept alive by small scripts."""
