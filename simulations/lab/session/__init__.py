"""A run of a scenario on the lab: set-up, load, faults, observation and report."""
