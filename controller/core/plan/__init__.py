"""Plans the replicas of the whole fleet, and keeps the ledger of spend and capacity."""
