"""Rules about Loop and Scan: trip counts, carried values, slice reads and scan outputs."""
