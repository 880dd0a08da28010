"""`shards`: a Deployment and a Lease for each shard, and the policy that compares a pod with its own Lease."""

import pytest
from helm_chart import Chart, ChartRefused, Manifest, Values, of_kind

from controller.core.state.shards import Shard
from controller.settings import load_settings


def rendered(chart: Chart, **values: object) -> list[Manifest]:
    return chart.render({"shards": 3, **values})


def named(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in of_kind(manifests, kind)}


def test_each_shard_has_a_deployment_that_selects_its_own_pods_and_knows_its_number(
    chart: Chart, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployments = named(rendered(chart, shardLabel="team"), "Deployment")
    assert list(deployments) == ["sluice-0", "sluice-1", "sluice-2"]
    labels = [each["spec"]["selector"]["matchLabels"] for each in deployments.values()]
    assert [each["sluice.dev/shard"] for each in labels] == ["0", "1", "2"]
    for deployment, selected in zip(deployments.values(), labels, strict=True):
        pod = deployment["spec"]["template"]
        assert selected.items() <= pod["metadata"]["labels"].items()
        spread = pod["spec"]["topologySpreadConstraints"]
        assert all(each["labelSelector"]["matchLabels"] == selected for each in spread)
    env = deployments["sluice-1"]["spec"]["template"]["spec"]["containers"][0]["env"]
    for entry in env:
        if "value" in entry:
            monkeypatch.setenv(entry["name"], entry["value"])
    found = load_settings({})
    assert found.fleet_shard == Shard(index=1, count=3, label="team")
    assert (found.own_lease_name, found.writes_pool_status) == ("sluice-1", False)


def test_each_shard_has_a_lease_and_the_right_to_it(chart: Chart) -> None:
    manifests = rendered(chart)
    leases = list(named(manifests, "Lease"))
    assert leases == ["sluice-0", "sluice-1", "sluice-2"]
    assert "sluice" not in leases
    role = named(manifests, "Role")["sluice-lease"]
    assert [rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule] == [leases]


def test_the_policy_of_each_shard_is_for_its_pods_and_every_other_request_has_one_too(chart: Chart) -> None:
    manifests = rendered(chart)
    bindings = [each for each in of_kind(manifests, "ValidatingAdmissionPolicyBinding") if "paramRef" in each["spec"]]
    assert [each["spec"]["paramRef"]["name"] for each in bindings] == ["sluice-0", "sluice-1", "sluice-2"]
    policies = named(manifests, "ValidatingAdmissionPolicy")
    conditions = [
        next(
            own["expression"]
            for own in policies[each["spec"]["policyName"]]["spec"]["matchConditions"]
            if own["name"] == "of-the-shard"
        )
        for each in bindings
    ]
    assert conditions[0].startswith('!["sluice-1-","sluice-2-"].exists(')
    assert conditions[1].endswith('.startsWith("sluice-1-")')
    assert conditions[2].endswith('.startsWith("sluice-2-")')


def test_one_shard_is_as_without(chart: Chart) -> None:
    assert chart.render({"shards": 1}) == chart.render()
    assert list(named(chart.render(), "Deployment")) == ["sluice"]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"replicas": 1, "leaderElection": {"enabled": False}}, "leaderElection.enabled: several shards need it"),
        ({"watchNamespaces": ["speech"]}, "watchNamespaces: not with several shards"),
        ({"operator": {"fleetBudget": "40"}}, "use a ComputeBudget that selects all namespaces"),
        ({"operator": {"poolStatus": "Always"}}, "operator.poolStatus: Always: must be Auto"),
        ({"keda": {"enabled": True}}, "keda.enabled: not with several shards"),
        ({"shards": 1, "shardLabel": "team"}, "shardLabel: team: needs shards"),
        ({"shards": 65}, "/shards"),
        ({"shardLabel": "a b"}, "/shardLabel"),
    ],
)
def test_what_does_not_fit_several_shards_is_refused(chart: Chart, values: Values, problem: str) -> None:
    with pytest.raises(ChartRefused) as refused:
        chart.render({"shards": 2, **values})
    assert problem in str(refused.value)
