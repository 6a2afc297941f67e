"""Rules about counted loops, as Loop or as Scan: what can be done for all iterations at once."""
