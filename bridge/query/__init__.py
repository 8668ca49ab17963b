"""What happened to one message: its records found in an archive, told as a story, shown to people and programs."""
