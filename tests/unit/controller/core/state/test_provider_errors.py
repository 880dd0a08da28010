"""What errors of the provider mean, by texts as EC2, Auto Scaling, Karpenter and the cluster autoscaler write them."""

import pytest

from controller.core.state.provider_errors import ErrorClass, ProviderError, classify, last_of

CAPACITY, QUOTA = ErrorClass.CAPACITY, ErrorClass.QUOTA
THROTTLED, PERMISSION = ErrorClass.THROTTLED, ErrorClass.PERMISSION

TEXTS = (
    # EC2
    (
        CAPACITY,
        (
            "InsufficientInstanceCapacity: We currently do not have sufficient inf2.xlarge capacity in the "
            "Availability Zone you requested (us-east-1a). "
        ),
    ),
    (CAPACITY, "UnfulfillableCapacity: Unable to fulfill capacity due to your request configuration."),
    (CAPACITY, "There is no Spot capacity available that matches your request."),
    (
        CAPACITY,
        (
            "Unsupported: Your requested instance type (trn1.2xlarge) is not supported in your requested Availability "
            "Zone (us-east-1e)."
        ),
    ),
    (CAPACITY, "InsufficientFreeAddressesInSubnet: There are not enough free addresses in subnet subnet-0a."),
    (CAPACITY, "ReservationCapacityExceeded: The requested reservation does not have sufficient available capacity."),
    (
        QUOTA,
        (
            "VcpuLimitExceeded: You have requested more vCPU capacity than your current vCPU limit of 0 allows for the "
            "instance bucket that the specified instance type belongs to. Please visit "
            "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."
        ),
    ),
    (QUOTA, "MaxSpotInstanceCountExceeded: Max spot instance count exceeded"),
    (QUOTA, "InstanceLimitExceeded: You have requested more instances (3) than your current instance limit of 2"),
    (THROTTLED, "RequestLimitExceeded: Request limit exceeded."),
    (THROTTLED, "ThrottlingException: Rate exceeded"),
    (PERMISSION, "UnauthorizedOperation: You are not authorized to perform this operation. User: arn:aws:sts::1:…"),
    (PERMISSION, "AccessDenied: User: arn:aws:sts::123456789012:assumed-role/x is not authorized to perform: y"),
    (PERMISSION, "ExpiredToken: The security token included in the request is expired"),
    # Karpenter's Event about a NodeClaim, and its condition Launched
    (
        CAPACITY,
        (
            "NodeClaim inf2-x7k2m event: creating instance, insufficient capacity, with fleet error(s), "
            "InsufficientInstanceCapacity: We currently do not have sufficient inf2.xlarge capacity in zones."
        ),
    ),
    (
        QUOTA,
        (
            "InsufficientCapacityError: creating nodeclaim, creating instance, insufficient capacity, with fleet "
            "error(s), VcpuLimitExceeded: You have requested more vCPU capacity than your current vCPU limit of 0"
        ),
    ),
    (
        PERMISSION,
        (
            "LaunchFailed: creating instance, with fleet error(s), UnauthorizedOperation: You are not authorized to "
            "perform this operation. Encoded authorization failure message: 4a5b"
        ),
    ),
    (
        THROTTLED,
        "LaunchFailed: creating instance, RequestLimitExceeded: Request limit exceeded",
    ),
    # Activities of Auto Scaling groups
    (
        CAPACITY,
        (
            "We currently do not have sufficient p4d.24xlarge capacity in the Availability Zone you requested "
            "(us-east-1b). Launching EC2 instance failed."
        ),
    ),
    (
        CAPACITY,
        "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity. Launching failed.",
    ),
    (
        QUOTA,
        (
            "You have requested more vCPU capacity than your current vCPU limit of 64 allows for the instance bucket "
            "that the specified instance type belongs to. Launching EC2 instance failed."
        ),
    ),
    (PERMISSION, "Client.InternalError: Client error on launch. Launching EC2 instance failed."),
    (PERMISSION, "Authentication Failure. Launching EC2 instance failed."),
    # The status of the cluster autoscaler
    (CAPACITY, "OutOfResource: placeholder-cannot-be-fulfilled"),
    (QUOTA, "OutOfQuota: quota exceeded in node group asg-gpu"),
)
OTHERS = (
    "",
    "0/3 nodes are available: 3 Insufficient aws.amazon.com/neuron.",
    "InvalidParameterValue: Invalid value 'x' for InstanceType",
    "UnsupportedOperation: The instance configuration for this AMI is not supported.",
    "The pod is unsupported by the node's runtime",
)


@pytest.mark.parametrize(("kind", "text"), TEXTS)
def test_a_text_of_the_provider_has_its_class(kind: ErrorClass, text: str) -> None:
    assert classify(text) is kind


@pytest.mark.parametrize("text", OTHERS)
def test_other_texts_have_none(text: str) -> None:
    assert classify(text) is None


def test_the_last_error_of_a_class_is_the_latest() -> None:
    errors = [
        ProviderError(kind=kind, at_s=at_s, text="") for kind, at_s in ((QUOTA, 2.0), (QUOTA, 1.0), (CAPACITY, 3.0))
    ]
    assert last_of(errors, QUOTA) == errors[0]
    assert last_of(errors, THROTTLED) is None
