"""Looks into models and rewrites: explain, step, verify, bisect, reduce, report; rules as pages."""
