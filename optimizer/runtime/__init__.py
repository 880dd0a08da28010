"""Compiled functions and the bounded cache of answers."""
