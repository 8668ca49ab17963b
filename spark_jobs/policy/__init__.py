"""What a run tolerates: policy files over defaults, what each writer can record, the gates."""
