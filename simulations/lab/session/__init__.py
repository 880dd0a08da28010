"""A run of a scenario on the lab, from set-up to report."""
