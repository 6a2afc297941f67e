"""The rewrite engine: rules, patches, the fixpoint over phases, and the trace of what happened."""
