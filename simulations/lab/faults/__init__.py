"""The proxy in front of Prometheus, and the metrics faults that it injects."""
