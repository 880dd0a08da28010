"""Grafana dashboards and Prometheus alerts for the operator's metrics, generated from typed values."""
