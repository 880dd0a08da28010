"""Proxies in front of real servers that inject faults."""
