"""On-demand list prices of AWS instance types, used where the cluster does not export what its nodes cost."""

REGION = "us-east-1"
DATE = "2026-07-20"
SOURCE = "karpenter-provider-aws, zz_generated.pricing_aws.go"

USD_PER_HOUR = {
    "c7g.4xlarge": "0.58",
    "c7i.2xlarge": "0.357",
    "c7i.4xlarge": "0.714",
    "c8g.4xlarge": "0.63808",
    "c8g.8xlarge": "1.27616",
    "g4dn.xlarge": "0.526",
    "g5.xlarge": "1.006",
    "g5.2xlarge": "1.212",
    "g6.xlarge": "0.8048",
    "g6e.xlarge": "1.861",
    "inf2.xlarge": "0.7582",
    "inf2.8xlarge": "1.96786",
    "inf2.24xlarge": "6.49063",
    "inf2.48xlarge": "12.98127",
    "p4d.24xlarge": "21.957642",
    "p5.4xlarge": "6.88",
    "p5.48xlarge": "55.04",
    "trn1.2xlarge": "1.34375",
    "trn1.32xlarge": "21.5",
}
"""Linux, shared tenancy, in `REGION` on `DATE`."""
