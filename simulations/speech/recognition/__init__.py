"""Words from audio: features, a causal streaming encoder with state per session, and greedy decoding."""
