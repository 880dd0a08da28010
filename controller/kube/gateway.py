"""The only module that speaks to the API server by itself: a handful of typed calls, each with a time limit.

Errors follow whose fault it is:

    KubeError
    ├── Refused         the request itself: asking again in the same way is pointless
    │   ├── NotFound    the object, or the whole kind, is not there
    │   ├── Conflict    the object is no longer what the request rested on
    │   ├── Forbidden   the operator lacks the right, or its credentials are not accepted
    │   └── Invalid     the server understood and rejects it
    └── Unavailable     the server or the network: the same request may succeed later
        ├── Expired     a watch cannot go on from where it was: what is there must be listed anew
        └── NotLeading  nothing was sent: this replica is not surely the one that may write
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

import urllib3
from kubernetes import client, config

from controller.core.state.spec import Target

FIELD_MANAGER = "sluice"
Json = dict[str, Any]

_CONNECTIONS = 32
"""Kept open: of watches, and of the threads that ask and write. By default it is the processors' number times five."""
_TIMEOUT_S = (3.0, 10.0)  # to connect, to answer
_SILENCE_S = 1.0
"""After a request without an answer the next ones fail at once for this long: each would wait as long in vain."""
_LONGEST_WAIT_S = 30.0
"""A server that asks to be left alone for longer than this is asked again all the same."""
_SILENT = "the API server did not answer a moment ago"
PAGE = 200  # objects per answer of a list: bounds memory on both sides
_MERGE_PATCH = "application/merge-patch+json"
_GONE = 410
_Answer = TypeVar("_Answer")


class KubeError(Exception):
    """The API server did not do what was asked."""


class Refused(KubeError):
    """The server answered no."""


class NotFound(Refused):
    """There is no such object or kind."""


class Conflict(Refused):
    """The object changed since it was read, or is another one by now."""


class Forbidden(Refused):
    """The operator may not do this."""


class Invalid(Refused):
    """The object or the request breaks a rule of the API."""


class Unavailable(KubeError):
    """The server could not be reached, was overloaded, failed, or did not answer in time."""


class Expired(Unavailable):
    """The server no longer knows what has happened since the version asked for."""


class NotLeading(Unavailable):
    """The write was not sent, because this replica does not surely hold the lease."""


class ConfigurationError(Exception):
    """There are no usable credentials to begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A kind of object as the API serves it."""

    api_version: str
    plural: str
    namespaced: bool = True

    @property
    def root(self) -> str:
        """Return the path under which the API serves it."""
        return f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the path of a collection, an object or its subresource."""
        parts = [self.root]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts += [quote(part, safe="") for part in (self.plural, name, subresource) if part is not None]
        return "/".join(parts)


PIPELINES = Resource(api_version="sluice.dev/v1alpha1", plural="speechpipelines")
POOLS = Resource(api_version="sluice.dev/v1alpha1", plural="computepools", namespaced=False)
PODS = Resource(api_version="v1", plural="pods")
NODES = Resource(api_version="v1", plural="nodes", namespaced=False)
DEPLOYMENTS = Resource(api_version="apps/v1", plural="deployments")
STATEFUL_SETS = Resource(api_version="apps/v1", plural="statefulsets")
EVENTS = Resource(api_version="v1", plural="events")
LEASES = Resource(api_version="coordination.k8s.io/v1", plural="leases")
AUTOSCALERS = Resource(api_version="autoscaling/v2", plural="horizontalpodautoscalers")
SCALED_OBJECTS = Resource(api_version="keda.sh/v1alpha1", plural="scaledobjects")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The objects of a collection and the version of the collection at which they were read."""

    items: tuple[Json, ...]
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """What happened to an object: ADDED, MODIFIED, DELETED; a BOOKMARK only tells the version that was reached."""

    kind: str
    object: Json


class EventStream:
    """The events of a watch as they come, until the server ends it in its time."""

    def __init__(self, response: Any, request: str) -> None:
        self._response = response
        self._request = request

    def __iter__(self) -> Iterator[WatchEvent]:
        """Yield the events.

        Raises:
            Expired: the version it began at is too old.
            Unavailable: it broke off, was silent for too long or said something else.
        """
        try:
            for line in self._response:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    problem = event["object"]
                    error = Expired if problem.get("code") == _GONE else Unavailable
                    raise error(f"{self._request}: {problem.get('code')} {problem.get('message')}")
                yield WatchEvent(kind=event["type"], object=event["object"])
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(f"{self._request}: {error}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise Unavailable(f"{self._request}: the answer is no event: {error}") from error
        finally:
            self._response.close()

    def interrupt(self) -> None:
        """Let the thread that reads it go on, as after a failure."""
        with suppress(OSError, ValueError, RuntimeError):  # it has ended already
            self._response.shutdown()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A scale subresource: what is asked for, and the selector of the pods that answer."""

    replicas: int
    selector: str
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where the API server is and how to be admitted, for another client of it."""

    server: str
    ca_path: str | None
    insecure: bool
    scheme: str | None
    token: str | None
    certificate_path: str | None
    private_key_path: str | None


class Gateway:
    """The operator's calls to the API server. Safe to use from several threads."""

    def __init__(
        self,
        kubeconfig: Path | None = None,
        *,
        permit: Callable[[], None] | None = None,
        counted: Callable[[str], None] = lambda _: None,
        timeout_s: tuple[float, float] = _TIMEOUT_S,
        insistent: bool = False,
    ) -> None:
        """Take the credentials of `kubeconfig`, else of `$KUBECONFIG`, the pod, or the user, whichever is there first.

        Args:
            kubeconfig: the file, if it is to be that one.
            permit: called right before every request that changes something; what it raises goes to the caller, and
                nothing is sent.
            counted: told the verb of every request: of HTTP, or WATCH.
            timeout_s: of every request, to connect and to answer.
            insistent: whether every request is sent, though the server has just not answered or wants to be left alone.

        Raises:
            ConfigurationError: there are none, or they cannot be read.
        """
        self._kubeconfig = kubeconfig
        self._counted = counted
        self._permit = permit
        self._timeout_s = timeout_s
        self._insistent = insistent
        self._left_alone = (0.0, "")
        self._lock = threading.Lock()
        self._scalable: dict[tuple[str, str], Resource] = {}
        self._client = _connect(kubeconfig)

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connection(self) -> Connection:
        """Return the credentials as they are now."""
        with self._lock:
            self._reload()
            settings = self._client.configuration
        # The header is `Bearer <token>`; the client keeps it under the name of the security scheme.
        header = settings.get_api_key_with_prefix("BearerToken") or ""
        scheme, _, token = header.rpartition(" ")
        return Connection(
            server=settings.host,
            ca_path=settings.ssl_ca_cert,
            insecure=not settings.verify_ssl,
            scheme=scheme or None,
            token=token or None,
            certificate_path=settings.cert_file,
            private_key_path=settings.key_file,
        )

    def list_all(self, resource: Resource, namespace: str | None = None, selector: str | None = None) -> Listing:
        """Return all objects of a kind, of one namespace or of all, that match a label selector."""
        items: list[Json] = []
        version = ""
        for page in self.pages(resource, namespace, **({"labelSelector": selector} if selector else {})):
            items += page.items
            version = page.resource_version
        return Listing(items=tuple(items), resource_version=version)

    def pages(self, resource: Resource, namespace: str | None = None, **narrowed: str) -> Iterator[Listing]:
        """Yield all objects of a kind, of one namespace or of all, a page at a time, all as of one version.

        `narrowed` are selectors by the API's names of them.
        """
        query = [("limit", str(PAGE)), *narrowed.items()]
        token: str | None = None
        while token != "":
            page = self._call(
                "GET", resource.path(namespace), query=[*query, *([("continue", token)] if token else [])]
            )
            yield Listing(items=tuple(page["items"]), resource_version=page["metadata"]["resourceVersion"])
            token = page["metadata"].get("continue", "")

    def watch(
        self, resource: Resource, namespace: str | None, version: str, *, lasting_s: int, **narrowed: str
    ) -> EventStream:
        """Return what happens to the objects of a kind, of one namespace or of all, from `version` on.

        The server ends it after `lasting_s` and tells the version reached before it does, so a longer silence than
        that is a failure.

        Raises:
            Expired: the server no longer knows what has happened since `version`.
        """
        path = resource.path(namespace)
        query = [("watch", "true"), ("resourceVersion", version), ("allowWatchBookmarks", "true")]
        query += [("timeoutSeconds", str(lasting_s)), *narrowed.items()]

        def ask() -> EventStream:
            self._counted("WATCH")
            try:
                response = self._open("GET", path, query, limit_s=(self._timeout_s[0], lasting_s + self._timeout_s[1]))
            except client.ApiException as error:
                if error.status == _GONE:
                    raise Expired(f"GET {path}: {error.reason}") from None
                raise
            return EventStream(response, f"GET {path}")

        return self._admitted(f"GET {path}", ask)

    def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        """Return one object."""
        return self._call("GET", resource.path(namespace, name))

    def read_scale(self, namespace: str, target: Target) -> Scale:
        """Return the scale of `target`; `NotFound` also when its kind has no scale, or is not of a namespace."""
        return _scale(self._call("GET", self._scale_path(namespace, target)))

    def patch_scale(self, namespace: str, target: Target, replicas: int, resource_version: str) -> Scale:
        """Ask for `replicas` and return the scale; `Conflict` when the workload is not at `resource_version`."""
        patch = {"metadata": {"resourceVersion": resource_version}, "spec": {"replicas": replicas}}
        return _scale(self._patch(self._scale_path(namespace, target), patch))

    def patch_status(self, resource: Resource, namespace: str | None, name: str, uid: str, status: Json) -> Json:
        """Merge `status` into that of the object and return the object.

        Raises:
            NotFound: it was deleted.
            Conflict: another object has its name by now (the uid differs).
        """
        return self._patch(resource.path(namespace, name, "status"), {"metadata": {"uid": uid}, "status": status})

    def create_event(self, namespace: str, event: Json) -> None:
        """Record an Event."""
        self.create(EVENTS, namespace, event)

    def create(self, resource: Resource, namespace: str, body: Json) -> Json:
        """Create an object and return it; `Conflict` when its name is taken."""
        return self._call("POST", resource.path(namespace), query=[("fieldManager", FIELD_MANAGER)], body=body)

    def patch(self, resource: Resource, namespace: str, name: str, patch: Json) -> Json:
        """Merge `patch` into an object and return it; `Conflict` when it is not at the version that `patch` names."""
        return self._patch(resource.path(namespace, name), patch)

    def _scale_path(self, namespace: str, target: Target) -> str:
        resource = self._scalable.get((target.api_version, target.kind)) or self._discover(target)
        return resource.path(namespace, target.name, "scale")

    def _discover(self, target: Target) -> Resource:
        """Find out under which path the API serves the kind, once; kinds without a scale are asked for again."""
        root = Resource(api_version=target.api_version, plural="").root
        try:
            served = self._call("GET", root)["resources"]
        except NotFound:
            raise NotFound(f"the API server does not serve {target.api_version}") from None
        names = {entry["name"] for entry in served}
        for entry in served:
            if entry["kind"] == target.kind and "/" not in entry["name"]:
                if f"{entry['name']}/scale" not in names:
                    break
                if not entry["namespaced"]:  # its path would drop the namespace: it is nobody's in particular
                    raise NotFound(f"{target.api_version} {target.kind} is not namespaced")
                resource = Resource(api_version=target.api_version, plural=entry["name"])
                self._scalable[target.api_version, target.kind] = resource
                return resource
        raise NotFound(f"{target.api_version} has no kind {target.kind} with a scale subresource")

    def _patch(self, path: str, patch: Json) -> Json:
        query = [("fieldManager", FIELD_MANAGER)]
        return self._call("PATCH", path, query=query, body=patch, content_type=_MERGE_PATCH)

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        return self._admitted(f"{method} {path}", lambda: self._request(method, path, query, body, content_type))

    def _admitted(self, request: str, ask: Callable[[], _Answer]) -> _Answer:
        """Return the answer; ask once more where the credentials are not accepted, with what they are by now."""
        try:
            return ask()
        except client.exceptions.UnauthorizedException:
            with self._lock:
                self._reload()  # a token that was rotated on disk
        except client.ApiException as error:
            raise _translated(error, request) from None
        try:
            return ask()
        except client.ApiException as error:
            raise _translated(error, request) from None

    def _request(
        self, method: str, path: str, query: Sequence[tuple[str, str]], body: Json | None, content_type: str
    ) -> Json:
        if self._permit is not None and method != "GET":
            self._permit()  # here and not earlier: every moment between the check and the request counts
        self._counted(method)
        response = self._open(method, path, query, body=body, content_type=content_type, limit_s=self._timeout_s)
        try:
            answer = json.loads(response.data)
        except urllib3.exceptions.TimeoutError as error:
            self._leave_alone(_SILENCE_S, _SILENT)
            raise Unavailable(f"{method} {path}: {error}") from error
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(f"{method} {path}: {error}") from error
        except ValueError as error:
            raise Unavailable(f"{method} {path}: the answer is no JSON: {error}") from error
        if not isinstance(answer, dict):
            raise Unavailable(f"{method} {path}: the answer is no object")
        return answer

    def _open(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        *,
        limit_s: tuple[float, float],
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Any:
        """Return the answer to a request, to be read; `limit_s` to connect and for every part of it."""
        until_s, why = self._left_alone
        if time.monotonic() < until_s and not self._insistent:
            raise Unavailable(f"{method} {path}: not asked: {why}")
        try:
            return self._client.call_api(
                path,
                method,
                query_params=list(query),
                header_params={"Accept": "application/json", "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=limit_s,
            )
        except client.ApiException as error:
            if (wait_s := _retry_after_s(error)) is not None:
                self._leave_alone(wait_s, f"the API server wants to be left alone for {wait_s:g} s ({error.status})")
            raise
        except urllib3.exceptions.TimeoutError as error:
            self._leave_alone(_SILENCE_S, _SILENT)
            raise Unavailable(f"{method} {path}: {error}") from error
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(f"{method} {path}: {error}") from error
        except AttributeError as error:
            # A TLS connection that broke: the client makes an error without a body of it, and then fails to read that.
            if not isinstance(error.__context__, client.ApiException):
                raise
            raise Unavailable(f"{method} {path}: {error.__context__.reason}") from error

    def _leave_alone(self, seconds: float, why: str) -> None:
        self._left_alone = (time.monotonic() + seconds, why)

    def _reload(self) -> None:
        settings = _connect(self._kubeconfig).configuration
        self._client.configuration.api_key = settings.api_key
        self._client.configuration.refresh_api_key_hook = settings.refresh_api_key_hook


def _scale(body: Json) -> Scale:
    return Scale(
        replicas=body.get("spec", {}).get("replicas", 0),  # zero is left out of the answer
        selector=body.get("status", {}).get("selector", ""),
        resource_version=body["metadata"]["resourceVersion"],
    )


def _connect(kubeconfig: Path | None) -> Any:
    settings = client.Configuration()
    settings.connection_pool_maxsize = _CONNECTIONS
    settings.retries = False  # the next cycle is the retry; the client's own would multiply the time limit
    try:
        if kubeconfig is None and "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=settings)
        else:
            path = None if kubeconfig is None else str(kubeconfig)
            config.load_kube_config(config_file=path, client_configuration=settings, persist_config=False)
    except (config.ConfigException, OSError) as error:
        raise ConfigurationError(f"no credentials for a Kubernetes API server: {error}") from error
    return client.ApiClient(configuration=settings)


_BY_STATUS: Mapping[int, type[KubeError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    422: Invalid,
}


def _retry_after_s(error: Any) -> float | None:
    """Return how long the server wants to be left alone, None when it does not say so in seconds."""
    if error.status not in {429, 503}:
        return None
    try:
        seconds = float((error.headers or {}).get("Retry-After", ""))
    except ValueError:
        return None
    return min(_LONGEST_WAIT_S, seconds) if seconds > 0 else None


def _translated(error: Any, request: str) -> KubeError:
    """Return the error of ours for one of the client's; a status that is nobody's fault yet may pass by itself."""
    try:
        message = json.loads(error.body)["message"]
    except (ValueError, TypeError, KeyError):
        message = error.reason
    return _BY_STATUS.get(error.status, Unavailable)(f"{request}: {error.status} {message}")
