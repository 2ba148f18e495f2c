"""Garbage collection of objects: reachability, deletion, verification."""
