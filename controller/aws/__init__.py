"""What AWS tells of prices, quotas and Auto Scaling groups. Only this package and the metric sources import boto3."""
