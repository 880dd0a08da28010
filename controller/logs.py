"""Log lines on stderr: as text, or as one JSON object per line with the decision records."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal


class JsonFormatter(logging.Formatter):
    """Formats a log line as one JSON object; `extra={"record": value}` becomes the field `record`.

    `value` may be a function that returns the field's value, so that only this format computes it.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for `record`, without a line break at its end."""
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
    # kopf and urllib3 log each of their requests; kopf also warns that it does not handle signals here.
    for name, level in (
        ("kopf", logging.WARNING),
        ("kopf._core.reactor.running", logging.ERROR),
        ("urllib3", logging.WARNING),
    ):
        logging.getLogger(name).setLevel(level)
