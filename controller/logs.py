"""Log lines: text for people, or one JSON object per line with the decision records in full."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal


class JsonFormatter(logging.Formatter):
    """One object per line; what a caller passes as `extra={"record": ...}`, or what that returns, is a field of it."""

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
    """Send all log lines of this process to stderr in `style`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if style == "json" else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # Both tell about every request they make; kopf also that signals are not its business here.
    for name, level in (
        ("kopf", logging.WARNING),
        ("kopf._core.reactor.running", logging.ERROR),
        ("urllib3", logging.WARNING),
    ):
        logging.getLogger(name).setLevel(level)
