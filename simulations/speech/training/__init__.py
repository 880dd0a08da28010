"""Training of the recogniser, with JAX: not needed where it runs."""
