"""The live twin of the simulated cluster: real control plane, metrics, queues and sockets on loopback."""
