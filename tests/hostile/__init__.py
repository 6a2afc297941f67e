"""Hostile files, options and rules: each ends with a clear message, within its limits."""
