"""Rules about values: constants, copies, equal nodes, what nobody reads."""
