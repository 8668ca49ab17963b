"""Maintain the repository; nothing in it is shipped."""
