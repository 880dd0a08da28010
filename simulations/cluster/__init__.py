"""The simulated cluster: it takes the place of a real one, makes Snapshots and applies Decisions."""
