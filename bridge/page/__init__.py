"""What every page shares: its look, how hostile text stays text, and one message's life drawn as lanes."""
