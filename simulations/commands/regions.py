"""`sluice regions`: where the streams of a product are served over a day, and what a lost region costs."""

import contextlib
import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
import yaml

from controller.commands.findings import refused
from controller.commands.help_page import examples

if TYPE_CHECKING:
    from simulations.regions.scenario import Regions
    from simulations.regions.study import Study

if find_spec("scipy") is None:  # solves the assignment; the operator's image lacks it, and `sluice` then reports that
    raise ModuleNotFoundError("scipy", name="scipy")


class _Dumper(yaml.SafeDumper):
    """Writes YAML in which times of day and numbers are quoted: some readers take 06:00 for a number."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if text[:1].isdigit() else None)


_Dumper.add_representer(str, _text)


@click.command(
    short_help="Plan one product over several clusters",
    epilog=examples("sluice regions regions.yaml --report report.html", "sluice regions regions.yaml --out shares"),
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Folder for REGION.yaml: what the SpeechPipeline of each cluster gets, for `kubectl apply --server-side`.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.html",
    help="HTML page with charts and tables, in one file that loads nothing.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Format of the output.",
)
def regions(file: Path, *, out: Path | None, report: Path | None, output: str) -> None:
    """Plan where the streams of one product are served, hour by hour, from the regions in FILE.

    Prints what that costs against each region on its own, and what a lost region costs: the load without a place at
    once, and after the others have started replicas.

    Exit status: 0 done; 1 FILE is invalid, there is load that no region can serve, or the shares cannot be written;
    2 wrong usage.
    """
    from simulations.commands.regions_output import document, print_study
    from simulations.commands.simulate import check_writable
    from simulations.regions.model import NotSolved
    from simulations.regions.page import render
    from simulations.regions.scenario import load_regions
    from simulations.regions.study import study
    from simulations.scenario.scenario import InvalidScenario

    if out is not None:
        check_writable(out)
    if report is not None:
        check_writable(report.parent, option="--report")
    try:
        loaded = load_regions(file)
    except InvalidScenario as error:
        raise refused(error.findings) from None
    try:
        with _solver_to_stderr():
            found = study(loaded)
    except NotSolved as error:
        raise click.ClickException(f"{file}: the solver found no assignment: {error}") from None
    if output == "json":
        click.echo(json.dumps(document(found, loaded), indent=2, allow_nan=False))
    else:
        print_study(found, loaded)
    if report is not None:
        report.write_text(render(found, loaded), encoding="utf-8")
        click.echo(f"report: {report}", err=output == "json")
    if out is not None:
        _write(found, loaded, out, to_stderr=output == "json")
    if found.shifted.leaves_load:
        raise click.exceptions.Exit(1)


@contextlib.contextmanager
def _solver_to_stderr() -> Iterator[None]:
    """Send to standard error what HiGHS prints: it writes warnings to descriptor 1, which has the JSON."""
    output, errors = 1, 2
    kept = os.dup(output)
    try:
        os.dup2(errors, output)
        yield
    finally:
        os.dup2(kept, output)
        os.close(kept)


def _write(found: "Study", loaded: "Regions", folder: Path, *, to_stderr: bool) -> None:
    """Write the shares of each cluster; nothing is written if those of one cannot be stated."""
    from simulations.regions.shares import NoSchedule, fragment

    texts: dict[Path, str] = {}
    for cluster in loaded.clusters:
        name = cluster.region.name
        try:
            part = fragment(found, loaded, cluster)
        except NoSchedule as error:
            raise click.ClickException(f"--out: {name}: {error}") from None
        head = f"# The share of {name}, by sluice regions {loaded.path.name}. Apply it with --server-side.\n"
        texts[folder / f"{name}.yaml"] = head + yaml.dump(part, Dumper=_Dumper, sort_keys=False)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
        click.echo(f"share: {path}", err=to_stderr)
