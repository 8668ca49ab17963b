"""What runs leave to the next one: open keys, closed ones, counted losses, one line a run."""
