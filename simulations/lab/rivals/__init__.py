"""Other autoscalers on the lab, as they are released: Kubernetes' HPA, KEDA, and a peak that never changes."""
