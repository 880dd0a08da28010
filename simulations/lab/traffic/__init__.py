"""Load generator, ingress and the path of items through the stages."""
