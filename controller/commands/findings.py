"""Prints the errors in manifest files."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from controller.resources.validation import Finding


def refused(findings: Iterable["Finding"]) -> click.exceptions.Exit:
    """Print `findings` to standard error, one line each; return the exception that ends the command with status 1."""
    for finding in findings:
        click.echo(str(finding), err=True)
    return click.exceptions.Exit(1)
