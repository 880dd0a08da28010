"""The decision of a cycle as a function of values: `cycle.decide`. No I/O, no clock and no randomness here."""
