"""How long an item stays in a stage and in a pipeline: queueing formulas, the batching table, composition."""
