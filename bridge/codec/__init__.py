"""Between bytes and trace records: the native format, the JSON of a record, and how bodies are framed in files."""
