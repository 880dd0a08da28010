"""The value types of a cycle: specs, policy, snapshot, state carried over, and the decision."""
