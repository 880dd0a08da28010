"""Builds Sluice's container images, compares builds and runs containers: `python -m images build|compare`.

Builds with buildah, or with Docker where only its daemon is there. As root on Debian, missing tools are installed.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGETS = ("operator", "simulations")
TOOLS = ("buildah", "podman", "runc", "mmdebstrap")
BUILT_AT = "1767225600"
"""The timestamp of every file, as in the Dockerfile. It is fixed, so that equal sources give equal images."""
MACHINE_CODE = (".nbc", ".nbi")
_SUITE = "trixie"
_LEFT_OUT = ("doc/*", "groff/*", "info/*", "lintian/*", "linda/*", "locale/*", "man/*")
"""Folders of /usr/share that Debian's slim images lack, but for the copyright files."""


# crun, podman's default, refuses a host with control groups of both versions. podman's own limits may be above those of
# this process, and raising one needs a capability that root may lack.
PLAIN = (
    *("--runtime", shutil.which("runc") or "runc", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"),
    *("--passwd=false", "--read-only-tmpfs=false", "--pull", "never"),
)
"""Flags of `podman run` for a container that has nothing but what is in its image."""


class CannotBuild(Exception):
    """Something that a build needs is missing; the message says what, and how to get it."""


def tag(target: str) -> str:
    """Return the local name of the image of `target`."""
    return f"localhost/sluice-{target}:dev"


def missing_tools() -> tuple[str, ...]:
    """Return those of `TOOLS` that are not installed."""
    return tuple(tool for tool in TOOLS if shutil.which(tool) is None)


def _may_install() -> bool:
    """Whether this is a Debian and this process is root."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(packages: Sequence[str]) -> None:
    """Install packages of Debian.

    Raises:
        CannotBuild: this is not Debian, or this process is not root.
    """
    if not _may_install():
        raise CannotBuild(f"install these packages of Debian: {', '.join(packages)}")
    print(f"==> installing {', '.join(packages)}", flush=True)
    _run("apt-get", "update", "-qq")
    quietly = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages, env=quietly)


def engine() -> str:
    """Return `buildah` or `docker`, whichever can build here; install missing tools where that is possible.

    Raises:
        CannotBuild: neither can.
    """
    if shutil.which("buildah") is None or (_may_install() and missing_tools()):
        if _may_install():
            install(missing_tools())
        elif shutil.which("docker") and _succeeds("docker", "info"):
            return "docker"
        else:
            raise CannotBuild(
                "the image needs buildah (run this as root on Debian, or install buildah, runc, podman and "
                "mmdebstrap), or Docker with a running daemon"
            )
    return "buildah"


def build(targets: Sequence[str] = TARGETS, *, storage: Sequence[str] = (), fresh: bool = False) -> None:
    """Build the images of `targets`; BASE and PLATFORM in the environment choose the base image and the platform.

    An image that buildah has made of the same files, base image and platform is left as it is. `storage` are flags of
    buildah that name another storage; `fresh` uses no cached layers and builds in any case.

    Raises:
        CannotBuild: a tool is missing.
    """
    builder = engine()
    base = os.environ.get("BASE") or (_base(storage) if builder == "buildah" else None)
    flags = [*(["--build-arg", f"BASE={base}"] if base else []), "--build-arg", f"SOURCE_DATE_EPOCH={BUILT_AT}"]
    if os.environ.get("PLATFORM"):
        flags += ["--platform", os.environ["PLATFORM"]]
    if fresh:
        flags += ["--no-cache"]
    command = ["docker", "build"]
    if builder == "buildah":
        # chroot: the build needs no runtime, no network of its own and no control group.
        command = ["buildah", *storage, "build", "--isolation", "chroot", "--layers", "--timestamp", BUILT_AT]
    with tempfile.TemporaryDirectory() as folder:
        for target in targets:
            began_s = time.monotonic()
            print(f"==> {tag(target)}", flush=True)
            note = cache() / f"{target}.built"
            known = builder == "buildah" and not storage and not fresh
            origin = _digest(flags)
            if known and note.is_file() and note.read_text() == f"{_image(target)} {origin}":
                print("    made of these files already")
                continue
            secrets = _secrets(Path(folder))
            _run(*command, *flags, *secrets, "--target", target, "-t", tag(target), str(ROOT), quiet=True)
            if known:
                note.write_text(f"{_image(target)} {origin}")
            print(f"    {time.monotonic() - began_s:.0f} s", flush=True)


def compare() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Build the operator's image twice without cached layers; return the paths that differ: (machine code, others)."""
    roots: list[Path] = []
    with tempfile.TemporaryDirectory(dir=cache()) as folder, _mounts() as mounted:
        for name in ("first", "second"):
            storage = ("--root", f"{folder}/{name}/root", "--runroot", f"{folder}/{name}/run")
            build(("operator",), storage=storage, fresh=True)
            roots.append(mounted(tag("operator"), storage))
        differing = _differences(*roots)
    code = tuple(path for path in differing if path.endswith(MACHINE_CODE))
    return code, tuple(path for path in differing if not path.endswith(MACHINE_CODE))


def layers(image: str) -> tuple[str, ...]:
    """Return the digests of the unpacked layers of a local image, the base first."""
    shown = json.loads(_output("buildah", "inspect", "--type", "image", image))
    return tuple(shown["OCIv1"]["rootfs"]["diff_ids"])


def packed_size(image: str, compression: str) -> int:
    """Return the bytes that a registry stores for a local image; `compression` is `gzip` or `zstd`."""
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        flags = ("--compression-format", compression, "--disable-compression=false")
        _run("buildah", "push", "--quiet", *flags, image, f"oci:{folder}/image", quiet=True)
        return sum(blob.stat().st_size for blob in Path(folder, "image", "blobs", "sha256").iterdir())


def container(image: str, *command: str, flags: Sequence[str] = ()) -> list[str]:
    """Return the command line of a container as a restricted pod has it: read-only root, no network, no capabilities.

    Nothing is writable, not even /tmp. podman adds no user to /etc/passwd, as a kubelet does not.
    """
    locked = ("--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
    return ["podman", "run", "--rm", "--interactive", *PLAIN, *locked, *flags, image, *command]


def cache() -> Path:
    """Return the user's cache folder for image builds; it is created if needed."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluice" / "image"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _image(target: str) -> str:
    """Return the id of the image of `target` in buildah's storage, empty if there is none."""
    command = ["buildah", "images", "--no-trunc", "--quiet", tag(target)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _digest(flags: Sequence[str]) -> str:
    """Return a digest of the flags of a build and of the files that it may read."""
    digest = hashlib.sha256(repr(flags).encode())
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    found = {path for pattern in ("Dockerfile", *allowed) for path in ROOT.glob(pattern)}
    files = {file for path in found for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()}
    for file in sorted(files):
        if "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(ROOT)} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def _base(storage: Sequence[str]) -> str:
    """Return the name of a base image made from Debian's packages, with the contents of Debian's own slim image.

    It stands in for the one in the registry, under a name that no registry has. A new one is made each month.
    """
    month = datetime.now(UTC).strftime("%Y-%m")
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    name = f"localhost/sluice-base:{_SUITE}-{architecture}-{month}"
    if _succeeds("buildah", *storage, "inspect", "--type", "image", name):
        return name
    archive = cache() / f"{_SUITE}-{architecture}-{month}.tar"
    if not archive.is_file():
        if shutil.which("mmdebstrap") is None:
            raise CannotBuild("no base image: install mmdebstrap, or name an image: make image BASE=debian:trixie-slim")
        print(f"==> making {name} from Debian's packages", flush=True)
        unfinished = archive.with_suffix(".unfinished.tar")
        rules = [f"--dpkgopt=path-exclude=/usr/share/{each}" for each in _LEFT_OUT]
        rules += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
        # Without a mirror, a stable suite comes with its updates and security updates.
        dated = {**os.environ, "SOURCE_DATE_EPOCH": BUILT_AT}
        _run(
            *("mmdebstrap", "--variant=minbase", *rules, _SUITE, str(unfinished)),
            env=dated,
            quiet=True,
        )
        unfinished.rename(archive)
    empty = _output("buildah", *storage, "from", "scratch")
    _run("buildah", *storage, "add", "--quiet", empty, str(archive), "/", quiet=True)
    _run("buildah", *storage, "commit", "--quiet", "--rm", "--timestamp", BUILT_AT, empty, name, quiet=True)
    return name


def _secrets(folder: Path) -> list[str]:
    """Return flags that pass on the site's own pip settings (PIP_CONFIG_FILE, PIP_INDEX_URL) and authority (PIP_CERT).

    They are readable by the steps that call pip, and are in no layer.
    """
    settings, flags = "[global]\n", []
    if certificates := os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE"):
        settings += "cert = /run/ca.crt\n"
        flags += ["--secret", f"id=ca,src={certificates}"]
    if index := os.environ.get("PIP_INDEX_URL"):
        settings += f"index-url = {index}\n"
    own = os.environ.get("PIP_CONFIG_FILE")
    if own is None and settings.count("\n") > 1:
        (folder / "pip.conf").write_text(settings)
        own = str(folder / "pip.conf")
    return [*flags, "--secret", f"id=pip,src={own}"] if own else flags


@contextmanager
def _mounts() -> Iterator["_Mounter"]:
    mounter = _Mounter()
    try:
        yield mounter
    finally:
        mounter.close()


class _Mounter:
    """Mounts images read-only for comparison."""

    def __init__(self) -> None:
        self._containers: list[tuple[Sequence[str], str]] = []

    def __call__(self, image: str, storage: Sequence[str]) -> Path:
        """Return the folder in which `image` of a storage is mounted."""
        name = _output("buildah", *storage, "from", "--pull-never", image)
        self._containers.append((storage, name))
        return Path(_output("buildah", *storage, "mount", name))

    def close(self) -> None:
        """Unmount all."""
        for storage, name in self._containers:
            _run("buildah", *storage, "umount", name, quiet=True)
            _run("buildah", *storage, "rm", name, quiet=True)


def _differences(one: Path, other: Path) -> tuple[str, ...]:
    """Return the paths of files that are in only one of two folders, or differ in contents, mode or owner."""

    def facts(root: Path) -> dict[str, tuple[object, ...]]:
        found: dict[str, tuple[object, ...]] = {}
        for folder, folders, files in os.walk(root):
            for name in [*folders, *files]:
                path = Path(folder, name)
                at = path.lstat()
                content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
                found[str(path.relative_to(root))] = (at.st_mode, at.st_uid, at.st_gid, int(at.st_mtime), hash(content))
        return found

    before, after = facts(one), facts(other)
    return tuple(sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path)))


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _output(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def _run(*command: str, env: dict[str, str] | None = None, quiet: bool = False) -> None:
    """Run a command; a quiet one shows its output only when it fails."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        env=env,
        check=False,
    )
    if done.returncode:
        raise CannotBuild(f"{(done.stdout or '')[-4000:]}\n{' '.join(command)}: exit status {done.returncode}")


def main() -> None:
    """Build the images, or compare two builds of the operator's."""
    parser = argparse.ArgumentParser(prog="images", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build").add_argument("--target", action="append", choices=TARGETS)
    commands.add_parser("compare")
    chosen = parser.parse_args()
    try:
        if chosen.command == "build":
            build(chosen.target or TARGETS)
            return
        code, others = compare()
    except CannotBuild as error:
        sys.exit(str(error))
    for path in (*others, *code):
        print(f"differs: {path}")
    print(f"{len(code)} files of machine code differ between two builds, {len(others)} others")
    if others:
        sys.exit(1)


if __name__ == "__main__":
    main()
