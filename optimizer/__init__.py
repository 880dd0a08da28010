"""What should run: the latency model and the search for the cheapest allocation. Pure: values in, values out."""
