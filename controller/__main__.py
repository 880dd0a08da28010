"""The `sluice` program: assembled from the commands that each package contributes."""

from importlib.metadata import entry_points

import click

_GROUP = "sluice.commands"


class Commands(click.Group):
    """A group that finds its commands among the installed entry points and imports one only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the installed commands."""
        return sorted(point.name for point in entry_points(group=_GROUP))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return the command called `cmd_name`, or None when no installed package contributes it."""
        for point in entry_points(group=_GROUP, name=cmd_name):
            try:
                command = point.load()
            except ModuleNotFoundError as error:
                return _out_of_reach(cmd_name, str(error.name))
            assert isinstance(command, click.Command)
            return command
        return None


def _out_of_reach(name: str, module: str) -> click.Command:
    """Return what stands for a command whose extra is not installed, as in the operator's image."""

    def refuse() -> None:
        raise click.ClickException(f"{name}: needs {module}: install sluice-operator[lab]")

    return click.Command(
        name,
        callback=refuse,
        help=f"Not installed: needs {module}, which comes with sluice-operator[lab].",
        context_settings={"ignore_unknown_options": True},
        params=[click.Argument(["arguments"], nargs=-1, expose_value=False)],
    )


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="sluice-operator", prog_name="sluice")
def main() -> None:
    """Allocate compute to speech pipelines: within the SLA, never above the budget."""


if __name__ == "__main__":
    main()
