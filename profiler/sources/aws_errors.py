"""The words of AWS about a request that it refuses, for those who read logs and statuses."""

from collections.abc import Mapping
from typing import Any

MOST_CHARACTERS = 300
"""The longest text of an error: an encoded authorization failure has some thousands of characters."""


def error_text(what: str, response: Mapping[str, Any]) -> str:
    """Return `what` was asked for with the code and the message of AWS. `response` is that of a botocore ClientError.

    Only the first line of the message is kept: with SignatureDoesNotMatch it goes on with the signed request, session
    token included.
    """
    found = response.get("Error", {})
    message = found.get("Message", "").partition("\n")[0]
    return f"{what}: {found.get('Code', 'Unknown')}: {message}"[:MOST_CHARACTERS].rstrip(": ")
