"""The commands that the simulations contribute to the `sluice` program."""
