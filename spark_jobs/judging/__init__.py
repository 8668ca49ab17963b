"""Judge the events of one bucket of messages: Arrow tables in, verdicts and partial counts out."""
