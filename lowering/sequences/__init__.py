"""Sequences in Relax: lists of a length that only a run knows."""
