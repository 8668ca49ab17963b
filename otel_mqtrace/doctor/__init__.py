"""Check an environment: what is instrumented, what is silently not, and what does not answer."""
