"""The `sluice` program: its commands are the entry points that the installed packages declare."""

from importlib.metadata import entry_points

import click

_GROUP = "sluice.commands"


class Commands(click.Group):
    """The click group of `sluice`: its commands are the entry points in `_GROUP`, each imported only when needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the installed commands."""
        return sorted(point.name for point in entry_points(group=_GROUP))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return the command called `cmd_name`; None when no installed package declares it.

        If a module that the command needs is missing, return a command that only says what to install.
        """
        for point in entry_points(group=_GROUP, name=cmd_name):
            try:
                command = point.load()
            except ModuleNotFoundError as error:
                return _not_installed(cmd_name, str(error.name))
            assert isinstance(command, click.Command)
            return command
        return None


def _not_installed(name: str, module: str) -> click.Command:
    """Return a command that only reports the missing `module` and the extra to install, as in the operator's image."""

    def refuse() -> None:
        raise click.ClickException(f"{name} needs {module}: install sluice-operator[lab]")

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
    """Allocate compute to speech pipelines: within the latency SLA and the budget, at least cost."""


if __name__ == "__main__":
    main()
