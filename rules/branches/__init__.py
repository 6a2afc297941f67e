"""Rules about If: branches that are known, that are not needed, that share work."""
