"""Builds HTML. Text that is not `Markup` is escaped, so no name from a scenario becomes HTML."""

import html
from typing import Self

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
_WITHOUT_END = frozenset({"br", "col", "hr", "input", "meta"})


class Markup(str):
    """Text that is HTML already, and is not escaped again."""

    __slots__ = ()

    @classmethod
    def of(cls, *children: object) -> Self:
        """Return the children one after the other; text that is not Markup is escaped, None and False are left out."""
        return cls("".join(_markup(child) for child in children))


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an HTML element. Attributes are named as in HTML, with _ for - and `class_` for class.

    Attributes and children that are None or False are left out.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value), quote=True)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _WITHOUT_END:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{Markup.of(*children)}</{name}>")


def page(title: str, *body: object, style: str, script: str = "") -> str:
    """Return an HTML page in one file, which loads nothing; `style` is CSS and `script` JavaScript."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(style)),
    )
    content = element("body", *body, script and element("script", Markup(script)))
    return "<!doctype html>\n" + element("html", head, "\n", content, lang="en") + "\n"


def _markup(child: object) -> str:
    if child is None or child is False:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return html.escape(child, quote=False)
    if isinstance(child, int | float):
        return str(child)
    if hasattr(child, "__iter__"):
        return "".join(_markup(one) for one in child)
    raise TypeError(f"{child!r} cannot be written as HTML")
