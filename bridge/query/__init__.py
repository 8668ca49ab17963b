"""Answer what happened to a message: records from an archive, its timeline, pages for people and programs."""
