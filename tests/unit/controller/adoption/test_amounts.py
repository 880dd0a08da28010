import math

import pytest

from controller.adoption.amounts import amount, requests_of, words


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("500m", 0.5), ("2", 2.0), (4, 4.0), ("0.1", 0.1), ("1e3", 1000.0), ("250u", 0.00025), ("100n", 1e-7)),
        *(("1Ki", 1024.0), ("2Gi", 2 * 2**30), ("1.5Gi", 1.5 * 2**30), ("3G", 3e9), ("1k", 1000.0), ("2Ti", 2 * 2**40)),
    ],
)
def test_amounts_are_read_as_the_api_server_does(text: object, value: float) -> None:
    assert amount(text) == pytest.approx(value)


def test_what_is_no_amount_is_not_zero() -> None:
    assert math.isnan(amount("much"))


def container(**resources: dict[str, str]) -> dict[str, object]:
    return {"name": "server", "resources": resources}


def test_a_pod_requests_the_sum_of_its_containers_and_at_least_its_largest_init_container() -> None:
    pod = {
        "containers": [container(requests={"cpu": "1", "memory": "1Gi"}), container(requests={"cpu": "500m"})],
        "initContainers": [container(requests={"cpu": "1", "memory": "3Gi"})],
        "overhead": {"cpu": "250m"},
    }
    assert requests_of(pod) == {"cpu": 1.75, "memory": 3 * 2**30}


def test_a_sidecar_adds_up() -> None:
    pod = {
        "containers": [container(requests={"cpu": "1"})],
        "initContainers": [{**container(requests={"cpu": "200m"}), "restartPolicy": "Always"}],
    }
    assert requests_of(pod) == pytest.approx({"cpu": 1.2})


def test_a_limit_without_a_request_is_the_request() -> None:
    assert requests_of({"containers": [container(limits={"nvidia.com/gpu": "1"})]}) == {"nvidia.com/gpu": 1.0}


def test_memory_is_shown_in_gib() -> None:
    assert words("memory", 1.5 * 2**30) == "1.5 GiB"
    assert words("cpu", 0.9) == "0.9"
