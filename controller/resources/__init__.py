"""The custom resources: models, generated CRDs, manifest files, validation, and translation to the core's specs."""
