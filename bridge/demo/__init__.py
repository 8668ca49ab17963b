"""The order system behind mqtrace demo."""
