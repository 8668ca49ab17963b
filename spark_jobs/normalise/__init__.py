"""Map raw records and spans to canonical events, as Arrow batches."""
