"""Forkable Python kernels inside a machine."""
