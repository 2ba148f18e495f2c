"""Portable forms of a session: carry token and checkpoint.

`carry_token.py`: signed text that a client keeps between turns. It holds a copy of the session
state and the position in the journal; the store refuses it if the session has moved on.

`checkpoint.py`: `AgentCheckpoint`, a JSON record of goal, plan, messages, facts and effects.
Another store can make a session from it.

Invariants: a carry token is trusted only with the signature of this store. A checkpoint is not
trusted: its facts become facts of the new session only, and are not published. Effects that were
done under a key are not done again.

Imports: the other packages of `sessions`, `hub` (the signing key of the store), `journal`,
`objects` and below.
"""
