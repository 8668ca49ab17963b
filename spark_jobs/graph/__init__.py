"""Who sends what to whom: legs of messages, how each message ended, and the sums that the graph is drawn from."""
