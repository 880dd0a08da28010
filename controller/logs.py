"""The format of log lines: text, or one JSON object per line with the decision records."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal


class JsonFormatter(logging.Formatter):
    """One JSON object per line; `extra={"record": value}`, or a function that returns it, becomes a field."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if (extra := getattr(record, "record", None)) is not None:
            line["record"] = extra() if callable(extra) else extra
        return json.dumps(line)


def set_up_logging(style: Literal["text", "json"]) -> None:
    """Write all log lines of this process to stderr in the format `style`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if style == "json" else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # Both log each of their requests; kopf also warns that it does not handle signals here.
    for name, level in (
        ("kopf", logging.WARNING),
        ("kopf._core.reactor.running", logging.ERROR),
        ("urllib3", logging.WARNING),
    ):
        logging.getLogger(name).setLevel(level)
