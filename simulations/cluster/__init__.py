"""The simulated cluster: it stands where the real one does, makes Snapshots and takes Decisions."""
