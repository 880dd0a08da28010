"""`sluice validate`: checks manifests without a cluster."""

from pathlib import Path

import click

from controller.commands.findings import refused
from controller.core.messages.phrases import count_of
from controller.resources.validation import validate_files


@click.command()
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
def validate(files: tuple[Path, ...]) -> None:
    """Check the SpeechPipelines, ComputePools and ComputeBudgets in manifest FILEs, and the references between them.

    Prints one line per error: file:line: field: value: rule. Exit status: 0 valid, 1 invalid, 2 wrong usage.
    """
    result = validate_files(files)
    if result.findings:
        refusal = refused(result.findings)
        count = len(result.findings)
        click.echo(count_of(count, "error"), err=True)
        raise refusal
    count = len(result.pipelines) + len(result.pools) + len(result.budgets)
    others = f"; {count_of(result.others, 'resource')} of other kinds not checked" if result.others else ""
    click.echo(f"{count_of(count, 'resource')} valid{others}")
    if result.pipelines and not result.pools_known:
        click.echo("these files have no ComputePool: references to pools were not checked")
