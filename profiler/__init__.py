"""The profiler reads metrics, estimates every stage and forecasts the demand. All I/O is in `profiler.sources`."""
