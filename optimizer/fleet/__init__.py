"""Several pipelines that share pools and a budget: Lagrangian prices of the pools, and independent components."""
