"""Adoption of workloads that already run: suggested manifests (`sluice init`), and what keeps them from working."""
