"""What an agent has been through: chained events, and the mind they add up to."""
