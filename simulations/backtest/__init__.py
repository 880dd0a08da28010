"""Backtests: the recorded load of pipelines, replayed with the decisions of Sluice and with the recorded replicas."""
