import subprocess
import sys

# In processes of their own: what is imported here is known to all tests.


def _printed(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return done.stdout.split()


def test_the_operator_makes_no_classes_of_the_kinds_of_the_api() -> None:
    made = (
        "print(sum(name.startswith(('kubernetes.client.models.', 'kubernetes.client.api.')) for name in sys.modules))"
    )
    assert _printed(f"import sys, controller.handlers, controller.kube.gateway; {made}") == ["0"]


def test_a_class_that_is_asked_for_is_made_and_errors_stay_the_same() -> None:
    program = (
        "from controller.kube.client_library import client\n"
        "before = client.ApiException\n"
        "from kubernetes import client as all_of_it, config, utils\n"
        "print(all_of_it.V1Pod.__name__, all_of_it.CoreV1Api.__name__, all_of_it.ApiException is before)\n"
    )
    assert _printed(program) == ["V1Pod", "CoreV1Api", "True"]


def test_a_client_that_was_imported_before_is_used_as_it_is() -> None:
    program = (
        "import kubernetes\n"
        "from controller.kube.client_library import client, config\n"
        "print(client is kubernetes.client, config is kubernetes.config)\n"
    )
    assert _printed(program) == ["True", "True"]
