"""Check a plan by a simulation of its queues with the planned load."""
