"""Compiled functions and the bounded cache."""
