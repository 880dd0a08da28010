"""Voice activity: which chunks of a session hold speech, so that the rest need not be recognised."""
