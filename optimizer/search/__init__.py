"""The search for one pipeline: tables of options, the greedy search, and the exact search, which bounds the cost."""
