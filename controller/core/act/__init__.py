"""Turns the plan into the changes of this cycle: target replicas, order of the changes, and admission."""
