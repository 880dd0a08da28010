"""An AWS account on moto's server: real HTTP, no network beside this machine, no credentials of anybody."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from moto.server import ThreadedMotoServer

REGION = "us-east-1"
IMAGE = "ami-12c6146b"
"""One of the images that moto has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MotoAccount:
    """The account at `url`."""

    url: str

    def client(self, service: str, region: str = REGION) -> Any:
        """Return a client of the account, as `controller.aws.clients.AwsClients` makes them."""
        return boto3.client(
            service,
            region_name=region,
            endpoint_url=self.url,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            config=Config(retries={"total_max_attempts": 1}),
        )

    def make_group(
        self, name: str, *, minimum: int = 0, maximum: int = 10, desired: int = 0, namespace: str | None = "speech"
    ) -> None:
        """Make an Auto Scaling group of g5.xlarge in two zones."""
        autoscaling = self.client("autoscaling")
        autoscaling.create_launch_configuration(LaunchConfigurationName=name, ImageId=IMAGE, InstanceType="g5.xlarge")
        tags = (
            []
            if namespace is None
            else [{"Key": "sluice.dev/namespace", "Value": namespace, "PropagateAtLaunch": False}]
        )
        autoscaling.create_auto_scaling_group(
            AutoScalingGroupName=name,
            LaunchConfigurationName=name,
            MinSize=minimum,
            MaxSize=maximum,
            DesiredCapacity=desired,
            AvailabilityZones=["us-east-1a", "us-east-1b"],
            Tags=tags,
        )

    def desired(self, name: str) -> int:
        """Return the desired capacity of a group."""
        groups = self.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])
        return int(groups["AutoScalingGroups"][0]["DesiredCapacity"])


@contextmanager
def moto_account() -> Iterator[MotoAccount]:
    """Run moto's server on a free port while the context is entered."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield MotoAccount(url=f"http://{host}:{port}")
    finally:
        server.stop()
