"""The clairvoyant bound: what no policy can cost less than, given the load and the faults."""
