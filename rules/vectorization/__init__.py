"""Rules that compute work of a loop body for all iterations at once, outside the loop."""
