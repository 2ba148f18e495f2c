"""Processes that run attempts: here by fork, or on Ray."""
