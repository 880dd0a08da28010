"""The controller: the pure decision cycle (`core`), access to Kubernetes (`kube`), the resources and the commands."""
