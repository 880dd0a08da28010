"""The data files bundled with the simulations: recorded load traces."""
