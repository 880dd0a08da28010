"""The clairvoyant bound: a lower bound on the cost of any policy that meets the SLA, given the load and the faults."""
