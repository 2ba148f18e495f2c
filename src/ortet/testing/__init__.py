"""Conformance suites for authors of backends and engines: subclass, supply a fixture, run."""
