"""One reconcile as a function of values: `cycle.decide`. Nothing here does I/O, reads a clock or draws randomness."""
