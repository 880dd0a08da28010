"""The time of an item in a stage and in a pipeline: queueing formulas, the batching table, composition."""
