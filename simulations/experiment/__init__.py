"""The runs of an experiment, their bounds, and the training of policy settings."""
