"""A real nginx for the tests of its example: the one on the PATH, or Debian's package, unpacked into a folder."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waiting import until

VARIABLE = "SLUICE_NGINX"
_END_S = 10.0
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


class NoNginx(RuntimeError):
    """No nginx was found, and none can be had; the message says what to do."""


def find_nginx(folder: Path) -> Path:
    """Return the nginx of the environment variable, the one on the PATH, or Debian's, which `folder` then has.

    Nothing is installed: a package would start a server on port 80.
    """
    if named := os.environ.get(VARIABLE):
        if not Path(named).is_file():
            raise NoNginx(f"{VARIABLE}={named}: no such file")
        return Path(named)
    if found := shutil.which("nginx") or shutil.which("/usr/sbin/nginx"):
        return Path(found)
    advice = f"install nginx, or set {VARIABLE}=/path/to/nginx"
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise NoNginx(f"no nginx found: {advice}")
    for update in (False, True):  # package lists may be old, or not there
        if update:
            subprocess.run(["apt-get", "update", "-qq"], check=False, capture_output=True)
        done = subprocess.run(
            ["apt-get", "download", "-qq", "nginx"], cwd=folder, capture_output=True, text=True, check=False
        )
        if packages := [*folder.glob("nginx_*.deb")]:
            subprocess.run(["dpkg", "-x", packages[0], folder], check=True, capture_output=True)
            return folder / "usr/sbin/nginx"
    raise NoNginx(f"no nginx found, and its package cannot be downloaded ({done.stderr.strip()}): {advice}")


@contextmanager
def running(program: Path, configuration: str, folder: Path, port: int) -> Iterator[None]:
    """Run nginx with `configuration` until the end of the block; at its begin it listens on `port`.

    What it writes is in `folder` instead of the places that its package has made for it.
    """
    temporary = "".join(f"  {name}_temp_path {folder}/{name};\n" for name in _TEMPORARY)
    configuration = configuration.replace("http {\n", f"http {{\n  access_log off;\n{temporary}", 1)
    file, log = folder / "nginx.conf", folder / "error.log"
    file.write_text(f"daemon off;\npid {folder}/nginx.pid;\n{configuration}")
    server = subprocess.Popen([program, "-p", folder, "-c", file, "-e", log], stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: server.poll() is not None or _listens(port))
        assert server.poll() is None, log.read_text() if log.exists() else ""
        yield
    finally:
        server.terminate()
        server.communicate(timeout=_END_S)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
