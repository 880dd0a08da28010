"""Plan replicas: the latency model, and the search for the cheapest allocation. No I/O: values in, values out."""
