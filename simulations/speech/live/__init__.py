"""The reference service on the lab: its pods, its load of speech, and what users heard."""
