"""Rules about values: constants, copies, repeated nodes, and nodes whose results nothing reads."""
