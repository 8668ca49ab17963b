"""Who sends what to whom: legs of messages, their journeys, and the sums that a dependency graph is drawn from."""
