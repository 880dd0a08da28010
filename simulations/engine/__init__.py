"""The engine: simulates the items, queues and batches of one pipeline in compiled code. It knows no cluster."""
