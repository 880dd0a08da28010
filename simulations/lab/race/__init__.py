"""A race: the same load on the lab under Sluice and under each rival, and each rival beside its simulation."""
