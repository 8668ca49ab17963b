"""This package knows how a finished run is told: one typed result, and every report rendered from it. No Spark here."""
