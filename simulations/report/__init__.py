"""The report of an experiment or a live run: one HTML file that needs nothing else."""
