"""The load generator, the ingress, and the path of items through the stages."""
