"""What Sluice is compared with: other autoscalers, each by its own published rules, with the signature of `decide`."""
