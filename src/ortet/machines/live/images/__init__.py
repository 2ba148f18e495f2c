"""Memory images of processes as objects of the store."""
