"""All access to Kubernetes: reads the cluster into a Snapshot, writes scales, and reports in statuses and Events."""
