"""Detection of secrets in variables, commands and files before they are stored.

Start with `scanner.SecretScanner`. It knows the secrets of the vault and of the environment by
value. While a hub writes, its object store has a scanner, unless the caller allows secrets. Code
that captures files, links, commands or process images calls it before it stores data. A
value is searched for in all of its encodings. `names.py` does not know values: it guesses from name
and form that a variable is a secret.

Invariants:

  - If captured data holds a secret, the commit fails with Refused("secret_found").
  - Errors and redacted values contain the name of a secret, never its value.

This package may import the layers below `machines` only. The images of processes are searched by
`machines/live/images/save.py`.
"""
