"""This package knows how the repository maintains itself; nothing in it is shipped."""
