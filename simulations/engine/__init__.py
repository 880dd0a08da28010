"""The engine: items, queues and batches of one pipeline, event by event in compiled code. It knows no cluster."""
