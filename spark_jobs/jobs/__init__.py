"""The runs: batch, stream and graph."""
