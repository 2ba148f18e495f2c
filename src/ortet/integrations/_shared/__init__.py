"""What the adapters share: a pool of sessions, messages, actions."""
