"""Finds the smallest model that still shows a finding, and reduces the bodies in it, too."""
