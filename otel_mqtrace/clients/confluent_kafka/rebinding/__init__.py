"""Replace references to client classes that were imported before instrumentation."""
