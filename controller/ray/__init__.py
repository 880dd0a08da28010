"""Ray Serve: what its REST API says of applications, and how their deployments are scaled."""
