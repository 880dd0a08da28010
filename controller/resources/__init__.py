"""The custom resources: models, generated CRDs, manifests on disk, validation, translation to domain values."""
