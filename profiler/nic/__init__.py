"""Receive pressure of network cards: readers of the kernel's counters, gauges made of them, and their exposition."""
