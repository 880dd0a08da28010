"""The external scaler, through which KEDA follows Sluice's decisions; needs the extra `keda`."""
