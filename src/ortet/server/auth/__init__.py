"""Authentication and authorization of HTTP requests.

Start with `authenticate.Authenticator`, which turns a request into a `tokens.Caller`.
`tokens.Tokens` creates and revokes tokens. `login` sets the cookie that the web page uses.

Invariants:
- Only a hash of a token is stored. Every request reads the token row, so a revoked token stops
  working at once.
- A request without an Authorization header is checked for its origin, because another site's page
  may send it.
- A caller that is limited to some agents can read only commits of their sessions
  (`commit_visibility`).
- Only callers with `Caller.runs` may run commands or write files on the server's host
  (`host_access`).

The package may import `hub`, `sessions` and layers below, and `errors` and `operations.registry` of
the server. `login` also imports `context` and `dispatch`; the other modules do not.
"""
