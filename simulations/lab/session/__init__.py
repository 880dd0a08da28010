"""One run of a scenario on the lab, from setting up to the report."""
