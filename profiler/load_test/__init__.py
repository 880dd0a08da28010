"""Load on one server, and the service law that its answers show: what `sluice profile` runs."""
