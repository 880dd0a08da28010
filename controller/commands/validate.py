"""`sluice validate`: checks manifests without a cluster."""

from pathlib import Path

import click

from controller.commands.connections import setting_options
from controller.commands.findings import refused
from controller.commands.help_page import examples
from controller.core.messages.phrases import count_of
from controller.resources.manifests import STANDARD_INPUT
from controller.resources.validation import MODELS, validate_files
from controller.settings import InvalidSettings, load_settings

_SUFFIXES = {".yaml", ".yml", ".json"}


@click.command(
    short_help="Check manifests without a cluster",
    epilog=examples("sluice validate pools.yaml speech.yaml", "helm template my-chart | sluice validate -"),
)
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, allow_dash=True, path_type=Path)
)
@setting_options(["presets_directory"])
def validate(files: tuple[Path, ...], presets_directory: Path | None) -> None:
    """Check the SpeechPipelines, ComputePools and ComputeBudgets in manifest FILEs, and the references between them.

    A FILE can be a folder, whose files *.yaml, *.yml and *.json are checked, or - for standard input. Prints one line
    per error: file:line: field: value: rule. Exit status: 0 valid, 1 invalid or nothing to check, 2 wrong usage.
    """
    from controller.core.messages.details import demand_of_completions
    from profiler.sources.metric_names import completion_counters
    from profiler.sources.presets import PresetFiles

    try:
        # With another source than Prometheus, its URL is not required.
        settings = load_settings({"presets_directory": presets_directory, "metrics": "direct"})
    except InvalidSettings as error:
        raise click.UsageError(str(error)) from None
    files = tuple(dict.fromkeys(file for path in files for file in manifest_files(path)))
    result = validate_files(files, presets=PresetFiles(settings.presets_directory).load())
    if result.findings:
        refusal = refused(result.findings)
        count = len(result.findings)
        click.echo(count_of(count, "error"), err=True)
        raise refusal
    count = len(result.pipelines) + len(result.pools) + len(result.budgets)
    if not count and not result.others:
        names = ", ".join("standard input" if file == STANDARD_INPUT else str(file) for file in files)
        raise click.ClickException(f"{names}: nothing to check: empty, or only comments")
    found = f"{count_of(count, 'resource')} valid" if count else f"no {', '.join(MODELS)} in these files"
    others = f"; {count_of(result.others, 'resource')} of other kinds not checked" if result.others else ""
    click.echo(found + others)
    for pipeline in result.pipelines:
        query = pipeline.spec.demand.query
        if query is not None and (counters := completion_counters(query)):
            click.echo(f"warning: {pipeline.metadata.name}: {demand_of_completions(counters)}", err=True)
    if result.pipelines and not result.pools_known:
        click.echo("these files have no ComputePool: references to pools were not checked")


def manifest_files(path: Path) -> list[Path]:
    """Return `path`, or the manifest files in it if it is a folder, in the order of their names.

    Raises:
        click.UsageError: there is no manifest file in the folder.
    """
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())
    if not files:
        raise click.UsageError(f"FILE...: '{path}': has no file *.yaml, *.yml or *.json (folders inside are not read)")
    return files
