"""Replicas of the reference service: queues, batches, a share of compute, and the transport of audio and words."""
