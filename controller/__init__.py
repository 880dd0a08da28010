"""What to do now: the pure cycle (`controller.core`), Kubernetes (`controller.kube`), resources and commands."""
