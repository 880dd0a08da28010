"""Replicas for the whole fleet, and the ledger of spend and capacity."""
