"""`sluice validate`: checks manifests without a cluster."""

from pathlib import Path

import click

from controller.commands.connections import setting_options
from controller.commands.findings import refused
from controller.core.messages.phrases import count_of
from controller.resources.validation import validate_files
from controller.settings import InvalidSettings, load_settings


@click.command()
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@setting_options(["presets_directory"])
def validate(files: tuple[Path, ...], presets_directory: Path | None) -> None:
    """Check the SpeechPipelines, ComputePools and ComputeBudgets in manifest FILEs, and the references between them.

    Prints one line per error: file:line: field: value: rule. Exit status: 0 valid, 1 invalid, 2 wrong usage.
    """
    from profiler.sources.presets import PresetFiles

    try:
        # With another source than Prometheus, its URL is not required.
        settings = load_settings({"presets_directory": presets_directory, "metrics": "direct"})
    except InvalidSettings as error:
        raise click.UsageError(str(error)) from None
    result = validate_files(files, presets=PresetFiles(settings.presets_directory).load())
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
