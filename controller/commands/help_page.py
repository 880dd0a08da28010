"""The pages of `sluice COMMAND --help` and `--help-all`: examples, and what a long list of options is shortened to."""

import re
from collections.abc import Iterable, Mapping

import click

_MANY = 12
"""With more options than this, `--help` has a clause about each, and one line for each group in `MORE`."""
_CLAUSE = re.compile(r"(?P<clause>.*?)(; |\. (?! )|, such as |, comma-separated|$)(?P<rest>.*)", re.DOTALL)
_NOTE = re.compile(r"  \[[^\]]*\]$")
_NAME = re.compile(r"--[\w-]+")
_ALL = "sluice.help_all"
"""The key under which a context says that its page has everything."""
MORE: Mapping[tuple[str, str], frozenset[str]] = {
    ("--prometheus-*", "Token, password, certificate, headers, SigV4."): frozenset(
        {
            *("--prometheus-token-file", "--prometheus-username", "--prometheus-password-file"),
            *("--prometheus-ca-file", "--prometheus-certificate-file", "--prometheus-key-file"),
            *("--prometheus-headers", "--prometheus-sigv4-region", "--prometheus-sigv4-service"),
        }
    ),
    ("--*-label, --match-labels", "Labels of the series of pods."): frozenset(
        {"--namespace-label", "--pod-label", "--match-labels"}
    ),
    ("--restrict-queries, --scrape-*", "Limits of queries; direct scrapes."): frozenset(
        {"--restrict-queries", "--scrape-endpoints", "--scrape-interval"}
    ),
    ("--lease-*, --leader-elect", "Leader election."): frozenset(
        {"--leader-elect", "--lease-namespace", "--lease-name", "--lease-duration", "--pod-name"}
    ),
    ("--keda-*", "External scaler for KEDA."): frozenset(
        {"--keda-address", "--keda-certificate-file", "--keda-key-file"}
    ),
    ("--aws-*, --cloudwatch-*", "Role and region; metrics in CloudWatch."): frozenset(
        {"--aws-region", "--aws-role", "--cloudwatch-namespace", "--cloudwatch-dimensions"}
    ),
    ("--ray-hosts", "Dashboards of Ray."): frozenset({"--ray-hosts"}),
    ("--host, --port", "Address of metrics and probes."): frozenset({"--host", "--port"}),
    ("--shard*, --max-priority, ...", "Shards; rights of namespaces."): frozenset(
        {"--shard", "--shard-label", "--max-priority", "--pool-status"}
    ),
    ("--series, --session, --scenario", "Details of recorded load."): frozenset(
        {"--series", "--session", "--scenario"}
    ),
    ("--header, --shape, --prompt, ...", "Details of requests."): frozenset(
        {
            "--content-type",
            "--header",
            "--shape",
            "--chunk-bytes",
            "--prompt",
            "--max-tokens",
            "--path",
            "--target-port",
        }
    ),
    ("--metrics, --seed, --max-batch", "Details of the server and the test."): frozenset(
        {"--metrics", "--seed", "--max-batch"}
    ),
    ("--executor, --part*, --join", "Ray, or parts on several machines."): frozenset(
        {"--executor", "--parts", "--part", "--join"}
    ),
}
"""The options that only `--help-all` describes where a command has many: the line about a group, and its options."""


def examples(*commands: str) -> str:
    """Return the text below a page of help: `commands`, a line each."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def sentence(command: click.Command | None) -> str:
    """Return the short help of a command, or the first sentence of its help, up to a colon or semicolon."""
    assert command is not None
    if command.short_help:
        return command.short_help.rstrip(".") + "."
    text = " ".join((command.help or "").split("\n\n")[0].split())
    return re.split(r"\. |[:;] ", text)[0].rstrip(".") + "."


class HelpFormatter(click.HelpFormatter):
    """Writes lists of options compactly where they are long, unless `whole`."""

    def __init__(self, *, width: int | None, max_width: int | None, whole: bool) -> None:
        super().__init__(width=width, max_width=max_width)
        self._whole = whole

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write the names and texts in `rows`."""
        rows = list(rows)
        if not rows[0][0].startswith("-"):
            super().write_dl(rows, col_max, col_spacing)
            return
        if len(rows) <= _MANY:
            super().write_dl(rows, col_max, col_spacing)
        elif self._whole:
            super().write_dl(rows, 36, col_spacing)
        else:
            self._write_short(rows)
        if any(re.search(r" TIME\b", name) for name, _ in rows):
            self.write_paragraph()
            self.write_text("TIME is a duration such as 30s, 1m30s or 1h.")

    def _write_short(self, rows: list[tuple[str, str]]) -> None:
        grouped = {name for names in MORE.values() for name in names}
        listed = [(name, _shortened(text)) for name, text in rows if not grouped & _names(name)]
        present = {each for name, _ in rows for each in _names(name)}
        super().write_dl(listed, 36, 2)
        if more := [line for line, names in MORE.items() if names & present]:
            self.write_paragraph()
            self.write_text("Described by --help-all:")
            super().write_dl(more, 36, 2)


class HelpContext(click.Context):
    """The context of a command whose help is written by `HelpFormatter`."""

    def make_formatter(self) -> click.HelpFormatter:
        """Return the formatter of the page that is asked for."""
        whole = bool(self.meta.get(_ALL))
        return HelpFormatter(width=self.terminal_width, max_width=self.max_content_width, whole=whole)


def with_long_help(command: click.Command) -> click.Command:
    """Return `command` with the page that `HelpContext` writes, and with --help-all where --help leaves something out.

    The subcommands of a group get the same, and a whole sentence in its list.
    """
    command.context_class = HelpContext
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        with_long_help(each).short_help = sentence(each)
    options = [option for option in command.params if isinstance(option, click.Option)]
    grouped = {name for names in MORE.values() for name in names}
    long = len(options) >= _MANY and any(grouped & set(option.opts) for option in options)
    if long and not any(option.opts == ["--help-all"] for option in options):
        command.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_print_all,
                help="Describe all options in full, and exit.",
            )
        )
    return command


def _print_all(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        context.meta[_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


def _names(text: str) -> set[str]:
    return set(_NAME.findall(text))


def _shortened(text: str) -> str:
    """Return the first clause of the text of an option, with the default that click adds."""
    note = _NOTE.search(text)
    found = _CLAUSE.match(text[: note.start()] if note else text)
    assert found is not None
    return found["clause"].rstrip(".") + "." + (note[0] if note else "")
