"""What is happening: samples, estimates of every stage, and the demand to expect. I/O lives in `profiler.sources` alone."""
