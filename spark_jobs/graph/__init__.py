"""Who sends what to whom: producer → topic → consumer group, and service → service, from events and verdicts."""
