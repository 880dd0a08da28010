"""The node agent and the stage workers that stand for model servers."""
