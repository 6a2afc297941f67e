"""The report: a rewrite as one web page that needs no server and no network."""
