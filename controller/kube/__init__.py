"""Kubernetes, spoken only here: reading the cluster into a Snapshot, writing scales, reporting in status and Events."""
