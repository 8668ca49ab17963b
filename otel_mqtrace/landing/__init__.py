"""Trace messages in files: layout, writer, and recovery of unfinished parts."""
