"""What the ports for AWS promise, held against moto's server where that models the service.

What it does not model (the price list, quotas, refused launches) is held against botocore's Stubber in
`tests/unit/controller/aws`.
"""

from collections.abc import Iterator

import pytest
from moto_account import IMAGE, REGION, MotoAccount, moto_account

from controller.aws.account import AwsAccount, GroupChanged
from controller.aws.failure import AwsFailure
from controller.aws.groups import AwsGroups, GroupNotFound, observed, target_of
from controller.aws.prices import AwsPrices, ask, refusal
from controller.aws.quotas import AwsQuotas
from controller.core.state.cloud import AwsPrice, PriceOrigin, Purchase, QuotaSource

NOW_S = 1_790_000_000.0


@pytest.fixture(scope="module")
def server() -> Iterator[MotoAccount]:
    with moto_account() as account:
        yield account


@pytest.fixture
def account(server: MotoAccount) -> MotoAccount:
    import urllib.request

    request = urllib.request.Request(f"{server.url}/moto-api/reset", method="POST")
    urllib.request.urlopen(request, timeout=10).close()
    return server


@pytest.fixture
def groups(account: MotoAccount) -> AwsGroups:
    return AwsGroups(account.client, REGION)


def an_aws_account(account: MotoAccount) -> AwsAccount:
    return AwsAccount(
        AwsPrices(account.client),
        AwsQuotas(account.client),
        lambda: AwsGroups(account.client, REGION),
        clock=lambda: NOW_S,
    )


class TestPrices:
    def test_spot_prices_are_read_and_those_of_a_stand_in_are_not_believed(self, account: MotoAccount) -> None:
        source = AwsPrice(instance_types=("g5.xlarge",), region=REGION, purchase=Purchase.SPOT)
        quote = ask(AwsPrices(account.client), source, NOW_S)
        assert quote.origin is PriceOrigin.SPOT
        assert quote.by_node
        assert all(name.startswith("g5.xlarge/us-east-1") for name in quote.by_node)
        assert "implausible" in refusal(source, quote, None)

    def test_a_service_that_is_not_there_is_a_failure(self, account: MotoAccount) -> None:
        source = AwsPrice(instance_types=("g5.xlarge",), region=REGION)
        with pytest.raises(AwsFailure, match="price list for us-east-1"):
            ask(AwsPrices(account.client), source, NOW_S)


class TestQuotas:
    def test_instances_that_run_count_by_family_and_purchase(self, account: MotoAccount) -> None:
        ec2 = account.client("ec2")
        for instance_type in ("g5.xlarge", "g5.2xlarge", "c7i.xlarge"):
            ec2.run_instances(ImageId=IMAGE, InstanceType=instance_type, MinCount=1, MaxCount=1)
        gone = ec2.run_instances(ImageId=IMAGE, InstanceType="g5.xlarge", MinCount=1, MaxCount=1)
        ec2.terminate_instances(InstanceIds=[gone["Instances"][0]["InstanceId"]])
        source = QuotaSource(code="L-DB2E81BA", region=REGION, vcpus=4, purchase=Purchase.ON_DEMAND, name="G OnDemand")
        found = AwsQuotas(account.client)._instances(source)
        assert len(found) == 2
        assert gone["Instances"][0]["InstanceId"] not in found

    def test_a_quota_that_is_not_there_is_a_failure(self, account: MotoAccount) -> None:
        source = QuotaSource(code="L-DB2E81BA", region=REGION, vcpus=4, purchase=Purchase.ON_DEMAND, name="G OnDemand")
        with pytest.raises(AwsFailure, match="quota L-DB2E81BA"):
            AwsQuotas(account.client).read(source, NOW_S)


class TestGroups:
    def test_a_group_is_a_workload_whose_replicas_are_its_instances(
        self, account: MotoAccount, groups: AwsGroups
    ) -> None:
        account.make_group("vad", minimum=1, maximum=8, desired=3)
        group = groups.read("vad", NOW_S)
        assert (group.min_size, group.max_size, group.desired, group.namespace) == (1, 8, 3, "speech")
        assert group.zones == ("us-east-1a", "us-east-1b")
        state = target_of(observed(group, None))
        assert (state.desired, state.existing, state.ready, state.terminating) == (3, 3, 3, 0)
        assert {replica.name for replica in state.serving} == {each.name for each in group.instances}

    def test_a_group_that_does_not_exist_is_told_as_such(self, groups: AwsGroups) -> None:
        with pytest.raises(GroupNotFound, match="there is no Auto Scaling group vad in us-east-1"):
            groups.read("vad", NOW_S)

    def test_it_is_scaled_up_and_down(self, account: MotoAccount, groups: AwsGroups) -> None:
        account.make_group("vad", desired=2)
        own = an_aws_account(account)
        own.scale("vad", 2, 5)
        assert account.desired("vad") == 5
        assert len(groups.read("vad", NOW_S).instances) == 5
        own.scale("vad", 5, 1)
        assert account.desired("vad") == 1

    def test_the_chosen_instances_go_and_the_others_stay(self, account: MotoAccount, groups: AwsGroups) -> None:
        account.make_group("vad", desired=4)
        names = sorted(each.name for each in groups.read("vad", NOW_S).instances)
        an_aws_account(account).scale("vad", 4, 2, first=names[1:3])
        left = {each.name for each in groups.read("vad", NOW_S).instances if not each.leaves}
        assert left == {names[0], names[3]}
        assert account.desired("vad") == 2

    def test_an_instance_that_is_protected_from_scale_in_stays(self, account: MotoAccount, groups: AwsGroups) -> None:
        account.make_group("vad", desired=2)
        names = sorted(each.name for each in groups.read("vad", NOW_S).instances)
        account.client("autoscaling").set_instance_protection(
            AutoScalingGroupName="vad", InstanceIds=[names[0]], ProtectedFromScaleIn=True
        )
        assert {each.name: each.protected for each in groups.read("vad", NOW_S).instances}[names[0]]
        an_aws_account(account).scale("vad", 2, 1, first=names[:1])
        assert names[0] in {each.name for each in groups.read("vad", NOW_S).instances}

    def test_a_desired_capacity_that_somebody_else_changed_is_not_overwritten(self, account: MotoAccount) -> None:
        account.make_group("vad", desired=2)
        with pytest.raises(GroupChanged, match="was set to 2 instances by another client"):
            an_aws_account(account).scale("vad", 3, 5)
        assert account.desired("vad") == 2

    def test_minimum_and_maximum_are_kept(self, account: MotoAccount) -> None:
        account.make_group("vad", minimum=1, maximum=3, desired=2)
        for after in (0, 4):
            with pytest.raises(AwsFailure, match="must be 1 to 3, its MinSize and MaxSize"):
                an_aws_account(account).scale("vad", 2, after)
        assert account.desired("vad") == 2

    def test_a_cycle_reads_it_from_the_account(self, account: MotoAccount) -> None:
        account.make_group("vad", desired=2)
        own = an_aws_account(account)
        own.watch({}, (), ["vad", "missing"])
        assert own.group("vad").group.desired == 2
        with pytest.raises(GroupNotFound):
            own.group("missing")
        own.close()
