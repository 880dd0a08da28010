"""Data that the simulations carry: recorded load traces."""
