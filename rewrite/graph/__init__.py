"""The graph: nodes and values by identity, def-use chains, control-flow nodes by role."""
