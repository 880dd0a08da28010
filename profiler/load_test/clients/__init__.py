"""Clients of servers, one module for each protocol, behind the ports in `port.py`."""
