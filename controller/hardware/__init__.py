"""Comparison of hardware: published priors of models on devices, the risk of spot instances, the plot of costs."""
