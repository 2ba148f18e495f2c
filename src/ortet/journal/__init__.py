"""The journal of a session: hash-chained events, and the state that they fold into."""
