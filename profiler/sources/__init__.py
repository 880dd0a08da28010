"""Metric back ends: all I/O of the profiler."""
