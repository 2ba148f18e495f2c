"""Network of a live machine: outbound traffic and forwarded ports."""
