"""Read raw records and spans from files, stores and topics."""
