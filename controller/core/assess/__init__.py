"""What the snapshot means for each pipeline: demand, rules, availability, conflicts."""
