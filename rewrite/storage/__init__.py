"""Model files and protos: reads, checks and writes them without losing anything."""
