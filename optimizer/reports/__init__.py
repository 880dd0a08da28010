"""Reports about a plan, for people only: certificate, advice, packing and curves."""
