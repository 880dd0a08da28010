"""The search for one pipeline: option tables, the greedy search, and the exact search that bounds its cost."""
