"""What is happening: samples, estimates of every stage, the demand to expect. I/O lives in `profiler.sources` alone."""
