"""The wire format, precise timers, and the small asynchronous Kubernetes client."""
