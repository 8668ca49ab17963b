"""Commands on native bytes: decode, encode, dialects."""
