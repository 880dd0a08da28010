"""Why the SLA of a pipeline is missed: causes with evidence, from the snapshot and from how it was before. Pure."""
