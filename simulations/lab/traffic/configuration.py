"""Configurations of the programs of the traffic, as JSON in files."""

from typing import ClassVar, Self

from pydantic import TypeAdapter, ValidationError


class Configuration:
    """A dataclass that is the configuration of a program; `NAME` is what error messages call it."""

    __slots__ = ()
    NAME: ClassVar[str]

    def to_json(self) -> str:
        """Return the configuration as JSON, which `from_json` reads."""
        return TypeAdapter(type(self)).dump_json(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the configuration in `text`, which `to_json` wrote.

        Raises:
            ValueError: a field is invalid; the message names each one.
        """
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            raise ValueError(f"{cls.NAME}: {error}") from None
