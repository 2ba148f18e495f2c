"""Streams: events, output of commands, terminals."""
