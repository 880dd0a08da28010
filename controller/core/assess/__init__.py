"""Assesses each pipeline of the snapshot before planning: demand, rules, availability, conflicts."""
