"""Every text about decisions that a user reads, made from values."""
