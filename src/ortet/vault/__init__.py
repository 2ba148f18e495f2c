"""Encrypted secrets of a store, and their redaction from recorded output.

Start with `vault.Vault`: put, get, forget and rotate secrets by name, with expiry times. Then:

- `keys`: finds the encryption keys, in an environment variable or a key file.
- `redaction`: collects known secrets, and removes them from command results.

Main invariants:

- Secrets are catalog rows. They are never part of a commit or an event.
- The key file is not in the store. A copy of a store does not reveal its secrets.
- `Vault.get` never returns an expired secret.
- No error message contains a secret or a key.

This package may import `machines`, `objects`, `backends` and below.
"""
