"""A check of `sluice doctor`. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check of `subject`: `ok` True, False with what to do as `message`, or None where unknown.

    With None, the message says why it is not known.
    """

    name: str
    subject: str
    ok: bool | None
    message: str
