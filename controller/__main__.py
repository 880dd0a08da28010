"""The `sluice` program: its commands are the entry points that the installed packages declare."""

import difflib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

import click

from controller.commands.help_page import examples, sentence, with_long_help
from controller.ending import Misconfigured, ended_by_signals, output_errors

_GROUP = "sluice.commands"


class Commands(click.Group):
    """The click group of `sluice`: its commands are the entry points in `_GROUP`, each imported only when needed.

    Every command ends alike: see `controller.ending`. An error is one line.
    """

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the program, and end it at once when a signal says so."""
        with ended_by_signals():
            return super().main(*args, **extra)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each command does, as one whole sentence."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence(self.get_command(ctx, name))) for name in self.list_commands(ctx)])

    def make_context(self, info_name: str | None, args: list[str], **extra: Any) -> click.Context:  # type: ignore[override]
        """Return the context of the arguments; --help and --version are printed here."""
        if sys.stdout is None and args[:1] != ["operator"]:
            raise click.ClickException("standard output is closed; redirect it to a file or to /dev/null")
        with output_errors(), _in_one_line():
            return super().make_context(info_name, args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that the arguments name."""
        with output_errors(), _in_one_line():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names; the error for an unknown one suggests the nearest."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if close := difflib.get_close_matches(args[0], self.list_commands(ctx), n=1):
                raise click.UsageError(f"{error.message} Did you mean {close[0]!r}?", error.ctx) from None
            raise

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
            return with_long_help(command)
        return None


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Let errors of usage be printed as one line, which ends with the command whose help to read."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise  # it prints the help
    except click.UsageError as error:
        if error.ctx is not None:
            rule = error.format_message()
            stop = "" if rule.endswith((".", "?", "!")) else "."
            raise Misconfigured(f"{rule}{stop} See '{error.ctx.command_path} --help'.") from None
        raise


def _not_installed(name: str, module: str) -> click.Command:
    """Return a command that only reports the missing `module` and the extra to install, as in the operator's image."""

    def refuse() -> None:
        raise click.ClickException(f"{name} needs {module}: install sluice-operator[lab]")

    return click.Command(
        name,
        callback=refuse,
        short_help=f"Not installed: needs {module}",
        help=f"Not installed: needs {module}, which comes with sluice-operator[lab].",
        context_settings={"ignore_unknown_options": True},
        params=[click.Argument(["arguments"], nargs=-1, expose_value=False)],
    )


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("sluice plan pools.yaml speech.yaml --demand 400", "sluice explain speech/captions"),
)
@click.version_option(package_name="sluice-operator", prog_name="sluice")
def main() -> None:
    """Allocate compute to speech pipelines: within the latency SLA and the budget, at least cost."""


if __name__ == "__main__":
    main()
