"""Scenarios that come with Sluice: each a folder of manifests and a scenario file."""
