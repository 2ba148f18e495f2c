"""Request middleware: access rules, idempotency, threads."""
