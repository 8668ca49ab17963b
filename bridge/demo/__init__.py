"""This module knows nothing by itself: the package is the order system behind ``mqtrace demo``."""
