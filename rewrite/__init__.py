"""The rewriting engine: graphs, facts, rules in general. It knows no particular rule and no TVM."""
