"""The live counterpart of the simulated cluster: a real control plane, Prometheus, queues and sockets on loopback."""
