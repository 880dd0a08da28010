"""The base of the resource models: a rule is declared in one place, for Python and for the API server.

A `Part` is a pydantic model. A rule between its fields is a `Constraint`: the CEL expression that goes into the CRD,
and the Python function that finds the same breaches. The resources themselves are in other modules.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from controller.resources.manifests import FieldPath, format_path

LENIENT: dict[str, bool] = {"lenient": True}
"""Validation context in which an invalid value makes only its field or its part unusable, not the whole object."""


class UnusableError(Exception):
    """A constraint cannot be evaluated, because a value that it reads is itself invalid."""


class Unusable:
    """Stands for an invalid value in a leniently validated part; reading its fields raises `UnusableError`."""

    def __getattr__(self, name: str) -> Any:
        raise UnusableError(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A broken rule: its text, and the path of the field, from the part that has the rule or from the root."""

    path: FieldPath
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A rule between the fields of a part.

    `find` yields the breaches of a part. `cel` is the same rule as a CEL expression for the API server; None where the
    schema states the rule already or CEL cannot. `rule` is the text of the rule, in which `{name}` is replaced by the
    value of the field `name`. `field` is the field at which the API server reports a breach; "" for the part itself.
    """

    find: Callable[[Any], Iterator[Breach]]
    cel: str | None
    rule: str
    field: str = ""

    def schema(self) -> dict[str, str]:
        """Return the constraint as an item of `x-kubernetes-validations`."""
        assert self.cel is not None
        names = re.findall(r"\{(\w+)\}", self.rule)
        entry = {"rule": self.cel, "message": re.sub(r" \(\{\w+\}\)", "", self.rule)}
        if names:
            # format() because concatenating strings would exceed CEL's cost budget.
            arguments = ", ".join(f"self.{to_camel(name)}" for name in names)
            text = re.sub(r"\{\w+\}", "%s", self.rule)
            entry["messageExpression"] = f"'{text}'.format([{arguments}])"
        if self.field:
            entry["fieldPath"] = f".{self.field}"
        return entry


def constraint(*, holds: Callable[[Any], bool], cel: str | None, rule: str, field: str = "") -> Constraint:
    """Return the constraint that `holds(part)` is true; a breach is reported at the manifest field `field`."""

    def find(part: Part) -> Iterator[Breach]:
        if not holds(part):
            yield Breach(path=tuple(field.split(".")) if field else (), rule=rule.format_map(vars(part)))

    return Constraint(find=find, cel=cel, rule=rule, field=field)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A rule for one scalar, in Python and in CEL; it annotates the type of the scalar."""

    holds: Callable[[Any], bool]
    cel: str
    rule: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the type's schema, followed by this check."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the type's schema with this check in CEL."""
        schema = handler(core)
        rules = [*schema.get("x-kubernetes-validations", ()), {"rule": self.cel, "message": self.rule}]
        return {**schema, "x-kubernetes-validations": rules}

    def _checked(self, value: Any) -> Any:
        if not self.holds(value):
            raise ValueError(self.rule)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ListMap:
    """Annotates a list whose items have a unique field `key` (`x-kubernetes-list-type: map`).

    With `also`, the two fields are unique together; `also` then has a default.
    """

    key: str
    also: str | None = None

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the list's schema with its Kubernetes list type."""
        keys = [self.key] if self.also is None else [self.key, self.also]
        extension = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}
        return {**handler(core), **extension}

    def identify(self, item: Any) -> tuple[object, FieldPath]:
        """Return the value of `item` in the key fields, and the path of the field `key` inside `item`."""
        names = item.field_names()
        own = getattr(item, names[self.key])
        return own if self.also is None else (own, getattr(item, names[self.also])), (self.key,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSet:
    """Annotates a list of distinct scalars (`x-kubernetes-list-type: set`)."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the list's schema with its Kubernetes list type."""
        return {**handler(core), "x-kubernetes-list-type": "set"}

    def identify(self, item: Any) -> tuple[object, FieldPath]:
        """Return `item`, which is its own key, and an empty path."""
        return item, ()


class Part(BaseModel):
    """A mapping of fields inside a resource. Undeclared fields are ignored; `inspect_strictly` reports them."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
    )
    constraints: ClassVar[tuple[Constraint, ...]] = ()

    @classmethod
    def field_names(cls) -> dict[str, str]:
        """Return a mapping from the name of each field in a manifest to its name in Python."""
        return {info.alias or name: name for name, info in cls.model_fields.items()}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema with the constraints that CEL can state."""
        schema = handler(core)
        rules = [item.schema() for item in cls.constraints if item.cel is not None]
        if rules:
            handler.resolve_ref_schema(schema)["x-kubernetes-validations"] = rules
        return schema

    @model_validator(mode="wrap")
    @classmethod
    def _part(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Any:
        if isinstance(data, dict):
            # The API server drops nulls of declared fields before it sets defaults.
            known = cls.field_names()
            data = {key: value for key, value in data.items() if value is not None or key not in known}
        if info.context is not LENIENT:
            return handler(data)
        try:
            part = handler(data)
        except ValidationError:
            return Unusable()
        fields = vars(part)
        for name in [name for name, value in fields.items() if isinstance(value, Unusable)]:
            del fields[name]
        return part

    if not TYPE_CHECKING:  # otherwise mypy would accept any attribute name

        def __getattr__(self, name: str) -> Any:
            if name in type(self).model_fields:
                raise UnusableError(name)
            return super().__getattr__(name)

    @field_validator("*", mode="wrap")
    @classmethod
    def _field(cls, value: Any, handler: Callable[[Any], Any], info: ValidationInfo) -> Any:
        try:
            return handler(value)
        except ValidationError:
            if info.context is not LENIENT:
                raise
            return Unusable()


def breaches(part: Part, path: FieldPath = ()) -> Iterator[Breach]:
    """Yield the broken constraints of `part` and of the parts inside it, and the duplicates in their lists.

    `path` is the path of `part` from the root; the paths of the breaches begin with it. Constraints that read an
    invalid value are skipped.
    """
    for item in type(part).constraints:
        try:
            found = list(item.find(part))
        except UnusableError:
            continue
        for breach in found:
            yield Breach(path=(*path, *breach.path), rule=breach.rule)
    for alias, name in type(part).field_names().items():
        value = vars(part).get(name)
        if isinstance(value, Part):
            yield from breaches(value, (*path, alias))
        elif isinstance(value, list):
            for marker in type(part).model_fields[name].metadata:
                if isinstance(marker, ListMap | ListSet):
                    yield from _duplicates(value, marker, (*path, alias))
            for index, entry in enumerate(value):
                if isinstance(entry, Part):
                    yield from breaches(entry, (*path, alias, index))


def _duplicates(items: list[Any], marker: ListMap | ListSet, path: FieldPath) -> Iterator[Breach]:
    seen: dict[object, int] = {}
    for index, item in enumerate(items):
        try:
            identity, inside = marker.identify(item)
            first = seen.setdefault(identity, index)
        except UnusableError:
            continue
        if first != index:
            rule = f"must be unique; {format_path((*path[-1:], first))} has the same value"
            yield Breach(path=(*path, index, *inside), rule=rule)
