"""Why control flow remains: the reasons of rules, where values come from, and what may help."""
