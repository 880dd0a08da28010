"""Control plane, Prometheus, nodes and Deployments of the lab."""
