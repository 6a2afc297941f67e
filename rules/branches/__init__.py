"""Rules about If: known branches, Ifs that need no branch, and work that branches share."""
