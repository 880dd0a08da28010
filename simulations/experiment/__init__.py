"""Which runs an experiment has, their bounds, and the training of policy settings."""
