"""The node agent, and the stage workers in place of model servers."""
