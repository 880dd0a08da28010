"""The Kubernetes client library without the classes of all kinds of the API, which are made when one is asked for.

`import kubernetes` makes some 800 of them: tens of MiB, and a third of a second of each command. Nothing here uses
them: objects of the API are JSON.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from typing_extensions import override

_PACKAGES = ("kubernetes", "kubernetes.client", "kubernetes.client.models")
_MODULES = ("exceptions", "configuration", "rest", "api_client")  # in the order in which they import each other
_NAMES = {"ApiException": "exceptions", "Configuration": "configuration", "ApiClient": "api_client"}


class _Package(ModuleType):
    """A package whose own code runs when something is asked for that it does not have yet."""

    closed = False

    @override
    def __getattr__(self, name: str) -> object:
        if self.closed or name.startswith("__"):  # the import system asks for more than it needs
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]  # its code asks for more, and finds it
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def _defer(name: str) -> None:
    """Put the package `name` in place without running its code."""
    spec = find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    package = _Package(name)
    package.__spec__, package.__loader__, package.__file__ = spec, spec.loader, spec.origin
    package.__package__, package.__path__ = name, list(spec.submodule_search_locations or ())
    sys.modules[name] = package
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], own, package)


@contextmanager
def without_kinds() -> Iterator[None]:
    """Let the `with` block find none of the classes: for a library that uses them only where they are installed."""
    _Package.closed = True
    try:
        yield
    finally:
        _Package.closed = False


def _light() -> tuple[ModuleType, ModuleType]:
    """Return the packages `kubernetes.client` and `kubernetes.config`."""
    if "kubernetes" not in sys.modules:
        for name in _PACKAGES:
            _defer(name)
        modules = {name: import_module(f"kubernetes.client.{name}") for name in _MODULES}
        for name, module in _NAMES.items():
            setattr(sys.modules["kubernetes.client"], name, getattr(modules[module], name))
    return import_module("kubernetes.client"), import_module("kubernetes.config")


client, config = _light()
