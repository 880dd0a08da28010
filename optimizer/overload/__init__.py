"""What is served when not everything can be: what-if subproblems, shares by priority, and the knapsack."""
