"""`sluice completion`: completes commands, options and file names in shells, and behind `kubectl sluice`."""

import sys

import click
from click.shell_completion import ShellComplete, get_completion_class

from controller.commands.help_page import examples

_PROGRAM, _VARIABLE = "sluice", "_SLUICE_COMPLETE"
_FILES, _NO_FILES = 0, 4
"""What kubectl's shell completion does after the candidates: offer files, or nothing else."""


@click.command(
    short_help="Print the completion script of a shell",
    epilog=examples("source <(sluice completion bash)"),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL for sluice.

    bash: source <(sluice completion bash). zsh, after compinit: source <(sluice completion zsh). fish: sluice
    completion fish | source. kubectl sluice completes with the script of kubectl itself.
    """
    from controller.__main__ import main

    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    click.echo(kind(main, {}, _PROGRAM, _VARIABLE).source())


def complete_for_kubectl() -> None:
    """Print the completions of `kubectl sluice …`: kubectl calls `kubectl_complete-sluice` with the words so far."""
    from controller.__main__ import main

    *words, incomplete = sys.argv[1:] or [""]
    found = ShellComplete(main, {}, _PROGRAM, _VARIABLE).get_completions(words, incomplete)
    for item in found:
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(f":{_FILES if any(item.type in {'file', 'dir'} for item in found) else _NO_FILES}")
