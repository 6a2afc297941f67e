"""The report: a rewrite as one page for the browser that needs no server and no network."""
