"""What if: load traces, scenarios, scoring, and the lab, a live twin of a cluster on one machine."""
