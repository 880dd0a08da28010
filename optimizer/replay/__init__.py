"""A plan checked by simulating its queues with the planned load."""
