"""The Helm chart, rendered by Helm itself."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "charts" / "sluice"
Manifest = dict[str, Any]
Values = Mapping[str, Any]


class ChartRefused(Exception):
    """Helm refused the values; the text has its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Renders the chart with the Helm at `helm`."""

    helm: Path
    folder: Path = CHART

    def run(self, *arguments: str | Path, values: Values | None = None) -> str:
        """Return the output of `helm ARGUMENTS`, with `values` as its file of values.

        Raises:
            ChartRefused: Helm failed.
        """
        given = ["--values", "-"] if values is not None else []
        done = subprocess.run(
            [self.helm, *arguments, *given],
            input=yaml.safe_dump(dict(values or {})),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ChartRefused(done.stderr)
        return done.stdout

    def render(
        self,
        values: Values | None = None,
        *,
        release: str = "sluice",
        namespace: str = "sluice-system",
        arguments: Sequence[str] = (),
    ) -> list[Manifest]:
        """Return the manifests of a release, those of tests included.

        Raises:
            ChartRefused: the chart or its schema refuses `values`.
        """
        text = self.run("template", release, self.folder, "--namespace", namespace, *arguments, values=values or {})
        return [document for document in yaml.safe_load_all(text) if document]


def of_kind(manifests: Sequence[Manifest], *kinds: str) -> list[Manifest]:
    """Return the manifests of some kinds."""
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def one(manifests: Sequence[Manifest], kind: str, name: str | None = None) -> Manifest:
    """Return the only manifest of a kind, or of a kind with this name."""
    (found,) = (found for found in of_kind(manifests, kind) if name is None or found["metadata"]["name"] == name)
    return found
