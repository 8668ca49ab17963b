"""Render a finished run: one typed result as HTML, Markdown, JUnit and Prometheus text."""
