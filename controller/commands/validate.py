"""`sluice validate`: what is wrong with manifests, before the API server says so."""

from pathlib import Path

import click

from controller.commands.findings import refused
from controller.resources.validation import validate_files


@click.command()
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
def validate(files: tuple[Path, ...]) -> None:
    """Check SpeechPipelines and ComputePools in manifest FILEs, and that they fit together.

    Prints one line for each mistake: file:line: field: value: rule. Exit status: 0 valid, 1 not, 2 wrong usage.
    """
    result = validate_files(files)
    if result.findings:
        refusal = refused(result.findings)
        count = len(result.findings)
        click.echo(f"{count} mistake{'s' if count > 1 else ''}", err=True)
        raise refusal
    count = len(result.pipelines) + len(result.pools)
    others = f", {result.others} of other kinds not checked" if result.others else ""
    click.echo(f"{count} resource{'' if count == 1 else 's'} valid{others}")
    if result.pipelines and not result.pools_known:
        click.echo("no ComputePool in these files: whether the pools exist was not checked")
