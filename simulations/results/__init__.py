"""Scores of runs and the values that hold them."""
