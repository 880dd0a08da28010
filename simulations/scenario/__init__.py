"""Scenario files: the load, its traces, and the changes and faults during a run."""
