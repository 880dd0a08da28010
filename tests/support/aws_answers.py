"""Stand-ins for AWS: answers as botocore's Stubber gives them, in the shapes of the API's own documentation."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import boto3
from botocore.config import Config
from botocore.stub import Stubber


def a_client(service: str, region: str = "us-east-1") -> Any:
    """Return a client that has credentials of nobody, and tries once."""
    return boto3.client(
        service,
        region_name=region,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        config=Config(retries={"total_max_attempts": 1}),
    )


class StubbedAws:
    """Makes stubbed clients of services; every answer that was queued must be asked for, in order."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []
        self._clients: dict[str, Any] = {}
        self._stubs: dict[str, Stubber] = {}

    def stub(self, service: str) -> Stubber:
        if service not in self._stubs:
            self._clients[service] = a_client(service)
            self._stubs[service] = Stubber(self._clients[service])
            self._stubs[service].activate()
        return self._stubs[service]

    def client(self, service: str, region: str) -> Any:
        self.made.append((service, region))
        self.stub(service)
        return self._clients[service]

    def all_asked(self) -> None:
        for stub in self._stubs.values():
            stub.assert_no_pending_responses()


def a_product(instance_type: str, usd: str | None, region: str = "us-east-1") -> str:
    """Return a product of the price list as GetProducts gives it: JSON in a string."""
    per_unit = {"CNY": "5.1"} if usd is None else {"USD": usd}
    dimension = {"unit": "Hrs", "rateCode": "A.B.C", "pricePerUnit": per_unit}
    return json.dumps(
        {
            "product": {
                "productFamily": "Compute Instance",
                "attributes": {"instanceType": instance_type, "regionCode": region},
            },
            "serviceCode": "AmazonEC2",
            "terms": {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": dimension}, "termAttributes": {}}}},
        }
    )


def a_spot_price(instance_type: str, zone: str, usd: str, at_s: float) -> Mapping[str, Any]:
    """Return an entry of DescribeSpotPriceHistory."""
    return {
        "InstanceType": instance_type,
        "AvailabilityZone": zone,
        "SpotPrice": usd,
        "ProductDescription": "Linux/UNIX",
        "Timestamp": datetime.fromtimestamp(at_s, UTC),
    }


def an_instance(
    name: str, instance_type: str, *, cores: int, threads: int = 2, spot: bool = False
) -> Mapping[str, Any]:
    """Return an instance of DescribeInstances."""
    return {
        "InstanceId": name,
        "InstanceType": instance_type,
        "CpuOptions": {"CoreCount": cores, "ThreadsPerCore": threads},
        **({"InstanceLifecycle": "spot"} if spot else {}),
    }
