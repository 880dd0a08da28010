"""Simulations: load traces, scenarios, other policies, scoring, reports, and the lab, a live cluster on one machine."""
