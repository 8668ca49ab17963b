"""Show an answer: on a terminal, as JSON, as a page."""
