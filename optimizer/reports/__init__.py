"""What only people read of a plan: certificate, advice, packing and curves."""
