"""Overload: which share of each demand is served when not everything fits, by priority and by a knapsack search."""
