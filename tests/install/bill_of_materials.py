"""Print the software bill of materials of an image (CycloneDX, JSON): Python distributions and Debian packages.

It runs in the build of the image, where /opt/sluice and the image's own Debian packages are installed.
"""

import json
import subprocess
from typing import Any
from urllib.parse import quote

_ENVIRONMENT = ("/opt/build/bin/cyclonedx-py", "environment", "--output-reproducible", "/opt/sluice/bin/python")
# Distributions whose metadata names no licence, by the licence text they carry (SPDX).
_LICENCES_BY_TEXT = {"promql-parser": "MIT"}
_PACKAGES = ("dpkg-query", "--show", "--showformat", "${Package}\t${Version}\t${Architecture}\n")


def debian_components(listing: str) -> list[dict[str, Any]]:
    """Return a CycloneDX component for each line `package⇥version⇥architecture` of `listing`."""
    components = []
    for line in listing.splitlines():
        name, version, architecture = line.split("\t")
        address = f"pkg:deb/debian/{quote(name, safe='')}@{quote(version, safe='.-~')}?arch={architecture}"
        components.append({"type": "library", "bom-ref": address, "name": name, "version": version, "purl": address})
    return components


def add_licences(components: list[dict[str, Any]]) -> None:
    """Give each of `components` without a licence the one of its licence text, where that is known."""
    for each in components:
        if not each.get("licenses") and each["name"] in _LICENCES_BY_TEXT:
            each["licenses"] = [{"license": {"id": _LICENCES_BY_TEXT[each["name"]], "acknowledgement": "concluded"}}]


def main() -> None:
    """Print the bill of materials."""
    python = subprocess.run(_ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    debian = subprocess.run(_PACKAGES, capture_output=True, text=True, check=True).stdout
    document = json.loads(python)
    add_licences(document["components"])
    document["components"] += debian_components(debian)
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
