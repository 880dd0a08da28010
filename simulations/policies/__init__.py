"""The policies of simulations: Sluice, and the autoscalers to compare it with, with the signature of `decide`."""
