"""What happens before and after a client call: the record or span of the event."""
