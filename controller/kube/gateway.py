"""Typed calls to the API server, each with a time limit. No other module uses the Kubernetes client."""

import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

import urllib3
import yaml

from controller.core.state.spec import Target
from controller.kube.client_library import client, config
from controller.kube.server_clock import ServerClock, boot_clock

FIELD_MANAGER = "sluice"
Json = dict[str, Any]

_CONNECTIONS = 32
"""Size of the connection pool, for watches and requests. The client's default is five times the number of CPUs."""
_TIMEOUT_S = (3.0, 10.0)  # to connect, to receive
_SILENCE_S = 1.0
"""After a request that timed out, further requests fail at once for this long, since each would time out as well."""
_PROBE_S = 2.0
"""How long the server may take to answer that it is there."""
_WRITES = {"PATCH", "PUT", "POST", "DELETE"}
_BUSY_S = 1.0
"""How long a kind of request is held back after a 429 or 503 without a Retry-After."""
_LONGEST_WAIT_S = 30.0
"""Upper limit for the server's Retry-After."""
_SILENT = "the API server did not answer the previous request in time"
_OVERLOADED = frozenset({429, 503})
"""The answers of a server that is away or overloaded. Any other answer is about the object of the request."""
PAGE = 200  # objects per page of a list, which bounds memory on both sides
_MERGE_PATCH = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"
_GONE = 410
_FORM = ", as `kubectl config view --raw` prints it"
_Answer = TypeVar("_Answer")


class KubeError(Exception):
    """A request to the API server failed, or was not sent."""


class Refused(KubeError):
    """The server rejected the request; repeating it unchanged is pointless."""


class NotFound(Refused):
    """The object or its kind does not exist."""


class Conflict(Refused):
    """The object has changed since it was read, or was replaced by another of the same name."""


class Forbidden(Refused):
    """The operator lacks the right, or its credentials are not accepted."""


class Invalid(Refused):
    """The object or the request breaks a rule of the API."""


class Failed(KubeError):
    """The server answered this request with an error such as 500; those for other objects may succeed."""


class Hung(Failed):
    """The server did not answer this write in time, and answers others: an admission webhook hangs, most likely."""


class Unavailable(KubeError):
    """The server is away for requests of this kind: it is overloaded (429, 503). A retry may succeed."""


class Silent(Unavailable):
    """The server could not be reached or did not answer in time, which is to be expected of any other request too."""


class HeldBack(Unavailable):
    """The request was not sent: the server asked to wait with this kind of request, or was silent just now."""


class Expired(Failed):
    """The server no longer has the events since the requested version."""


class NotLeading(Unavailable):
    """The write was not sent, because this replica does not safely hold the lease."""


class ConfigurationError(Exception):
    """There are no usable credentials for an API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A kind of Kubernetes object: the parts of its API paths. `namespaced` is False for cluster-wide kinds."""

    api_version: str
    plural: str
    namespaced: bool = True

    @property
    def root(self) -> str:
        """Return the path of the kind's API group and version, such as `/apis/apps/v1`."""
        return f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the path of the object `name`, or of its `subresource`.

        Without `name`, the path is that of the list in `namespace`, or in all namespaces (None).
        """
        parts = [self.root]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts += [quote(part, safe="") for part in (self.plural, name, subresource) if part is not None]
        return "/".join(parts)


PIPELINES = Resource(api_version="sluice.dev/v1alpha1", plural="speechpipelines")
POOLS = Resource(api_version="sluice.dev/v1alpha1", plural="computepools", namespaced=False)
BUDGETS = Resource(api_version="sluice.dev/v1alpha1", plural="computebudgets", namespaced=False)
NAMESPACES = Resource(api_version="v1", plural="namespaces", namespaced=False)
PODS = Resource(api_version="v1", plural="pods")
CONFIG_MAPS = Resource(api_version="v1", plural="configmaps")
NODES = Resource(api_version="v1", plural="nodes", namespaced=False)
DEPLOYMENTS = Resource(api_version="apps/v1", plural="deployments")
STATEFUL_SETS = Resource(api_version="apps/v1", plural="statefulsets")
EVENTS = Resource(api_version="v1", plural="events")
LEASES = Resource(api_version="coordination.k8s.io/v1", plural="leases")
AUTOSCALERS = Resource(api_version="autoscaling/v2", plural="horizontalpodautoscalers")
NODE_POOLS = Resource(api_version="karpenter.sh/v1", plural="nodepools", namespaced=False)
NODE_CLAIMS = Resource(api_version="karpenter.sh/v1", plural="nodeclaims", namespaced=False)
VERTICAL_AUTOSCALERS = Resource(api_version="autoscaling.k8s.io/v1", plural="verticalpodautoscalers")
SCALED_OBJECTS = Resource(api_version="keda.sh/v1alpha1", plural="scaledobjects")
RAY_SERVICES = Resource(api_version="ray.io/v1", plural="rayservices")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The objects of a list, or of one page of it, and the resource version of the list."""

    items: tuple[Json, ...]
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """A change of `object`: `kind` is ADDED, MODIFIED or DELETED.

    With the kind BOOKMARK nothing has changed: `object` only has the resource version that the watch has reached.
    """

    kind: str
    object: Json


class EventStream:
    """The events of one watch request, until the server ends the request."""

    def __init__(self, response: Any, request: str) -> None:
        self._response = response
        self._request = request

    def __iter__(self) -> Iterator[WatchEvent]:
        """Yield the events as they arrive.

        Raises:
            Expired: the resource version that the watch began at is too old.
            Failed: the server reported another error, or a line is not an event.
            Silent: the connection failed, or was silent for too long.
        """
        try:
            for line in self._response:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    problem = event["object"]
                    error = Expired if problem.get("code") == _GONE else Failed
                    raise error(f"{self._request}: {problem.get('code')} {problem.get('message')}")
                yield WatchEvent(kind=event["type"], object=event["object"])
        except urllib3.exceptions.HTTPError as error:
            raise Silent(f"{self._request}: {error}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise Failed(f"{self._request}: the server sent a line that is not a watch event: {error}") from error
        finally:
            self._response.close()

    def interrupt(self) -> None:
        """Close the connection from another thread; the thread that reads the events gets an error or their end."""
        with suppress(OSError, ValueError, RuntimeError):  # it is closed already
            self._response.shutdown()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A scale subresource: the desired replicas, and the label selector of the pods."""

    replicas: int
    selector: str
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Address of the API server and credentials for another client; the fields are those of `kopf.ConnectionInfo`."""

    server: str
    ca_path: str | None
    insecure: bool
    scheme: str | None
    token: str | None
    certificate_path: str | None
    private_key_path: str | None


class Gateway:
    """The operator's calls to the API server. Thread-safe."""

    def __init__(
        self,
        kubeconfig: Path | None = None,
        *,
        permit: Callable[[], None] | None = None,
        on_request: Callable[[str], None] = lambda _: None,
        on_answer: Callable[[KubeError | None], None] = lambda _: None,
        timeout_s: tuple[float, float] = _TIMEOUT_S,
        always_send: bool = False,
    ) -> None:
        """Load the credentials of `kubeconfig`; without it those of `$KUBECONFIG`, else the pod's, else ~/.kube/config.

        Args:
            kubeconfig: the file with the credentials.
            permit: called right before each request that changes something; if it raises, nothing is sent.
            on_request: called with the verb of each request: the HTTP method, or WATCH.
            on_answer: called after each request that was sent: with None if there was an answer, whatever its status,
                else with the error.
            timeout_s: time limits of each request in seconds: to connect, and to receive.
            always_send: send requests also right after one that timed out, and during a Retry-After.

        Raises:
            ConfigurationError: there are no credentials, or they cannot be read.
        """
        self.server_clock = ServerClock()
        """The time on the server, by its answers."""
        self._kubeconfig = kubeconfig
        self._on_request = on_request
        self._on_answer = on_answer
        self._permit = permit
        self._timeout_s = timeout_s
        self._always_send = always_send
        self._paused: dict[str, tuple[float, str]] = {}
        """Until when requests of a kind are not sent, and why; the kind "" stands for all."""
        self._lock = threading.Lock()
        self._scalable: dict[tuple[str, str], Resource] = {}
        self._client = _connect(kubeconfig)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connection(self) -> Connection:
        """Return the address of the server and the credentials, read anew."""
        with self._lock:
            self._reload()
            settings = self._client.configuration
        # The header is `Bearer <token>`; the client stores it under the name of the security scheme.
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
        """Return all objects of a kind that match a label selector, in one namespace or in all."""
        pages = list(self.pages(resource, namespace, **({"labelSelector": selector} if selector else {})))
        items = tuple(item for page in pages for item in page.items)
        return Listing(items=items, resource_version=pages[-1].resource_version)

    def pages(self, resource: Resource, namespace: str | None = None, **selectors: str) -> Iterator[Listing]:
        """Yield the pages of the list of a kind's objects, in `namespace` or in all (None), at one resource version.

        `selectors` are query parameters such as `labelSelector`.

        Raises:
            KubeError: the server refused or cannot be reached, or the list expired before its last page.
        """
        query = [("limit", str(PAGE)), *selectors.items()]
        token: str | None = None
        while token != "":
            following = [("continue", token)] if token else []
            page = self._call("GET", resource.path(namespace), query=[*query, *following])
            yield Listing(items=tuple(page["items"]), resource_version=page["metadata"]["resourceVersion"])
            token = page["metadata"].get("continue", "")

    def watch(
        self, resource: Resource, namespace: str | None, version: str, *, lasting_s: int, **selectors: str
    ) -> EventStream:
        """Return the stream of changes of a kind's objects since the resource version `version`.

        The stream covers `namespace`, or all namespaces (None). The server ends it after `lasting_s` seconds with a
        bookmark, so a longer silence is a failure. `selectors` are query parameters such as `fieldSelector`.

        Raises:
            Expired: the server no longer has the changes since `version`.
            KubeError: the server refused or cannot be reached.
        """
        path = resource.path(namespace)
        query = [("watch", "true"), ("resourceVersion", version), ("allowWatchBookmarks", "true")]
        query += [("timeoutSeconds", str(lasting_s)), *selectors.items()]

        def send() -> EventStream:
            self._on_request("WATCH")
            try:
                response = self._open("GET", path, query, limit_s=(self._timeout_s[0], lasting_s + self._timeout_s[1]))
            except client.ApiException as error:
                if error.status == _GONE:
                    raise Expired(f"GET {path}: {error.reason}") from None
                raise
            return EventStream(response, f"GET {path}")

        return self._authenticated(f"GET {path}", send)

    def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        """Return the object `name`; `NotFound` when there is none."""
        return self._call("GET", resource.path(namespace, name))

    def read_scale(self, namespace: str, target: Target) -> Scale:
        """Return the scale of `target`; `NotFound` also when its kind has no scale or is not namespaced."""
        return _scale(self._call("GET", self._scale_path(namespace, target)))

    def patch_scale(self, namespace: str, target: Target, replicas: int, resource_version: str) -> Scale:
        """Set the desired replicas and return the scale; `Conflict` when the workload is not at `resource_version`."""
        patch = {"metadata": {"resourceVersion": resource_version}, "spec": {"replicas": replicas}}
        return _scale(self._call("PATCH", self._scale_path(namespace, target), body=patch))

    def patch_status(
        self, resource: Resource, namespace: str | None, name: str, uid: str, status: Json, version: str | None = None
    ) -> Json:
        """Merge `status` into the status of the object with this `name` and `uid`, and return the object.

        Raises:
            NotFound: the object was deleted.
            Conflict: the object of this name has another uid, because it was deleted and created again; or it is not at
                the resource version `version`.
        """
        metadata = {"uid": uid} if version is None else {"uid": uid, "resourceVersion": version}
        patch = {"metadata": metadata, "status": status}
        return self._call("PATCH", resource.path(namespace, name, "status"), body=patch)

    def create(self, resource: Resource, namespace: str | None, body: Json) -> Json:
        """Create an object and return it; `Conflict` when its name is taken. Cluster-wide kinds have no namespace."""
        return self._call("POST", resource.path(namespace), body=body)

    def patch(self, resource: Resource, namespace: str, name: str, patch: Json) -> Json:
        """Merge `patch` into an object and return it; `Conflict` when it is not at the resourceVersion in `patch`."""
        return self._call("PATCH", resource.path(namespace, name), body=patch)

    def patch_json(self, resource: Resource, namespace: str, name: str, operations: Sequence[Json]) -> Json:
        """Apply a JSON Patch (RFC 6902) to an object and return it; `Invalid` when a `test` in it fails."""
        return self._call("PATCH", resource.path(namespace, name), body=list(operations))

    def _scale_path(self, namespace: str, target: Target) -> str:
        resource = self._scalable.get((target.api_version, target.kind)) or self._discover(target)
        return resource.path(namespace, target.name, "scale")

    def _discover(self, target: Target) -> Resource:
        """Look up the target's kind by API discovery, and remember its resource; `NotFound` if it has no scale."""
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
                if not entry["namespaced"]:  # a pipeline may scale only in its own namespace
                    raise NotFound(f"{target.api_version} {target.kind} is not namespaced")
                resource = Resource(api_version=target.api_version, plural=entry["name"])
                self._scalable[target.api_version, target.kind] = resource
                return resource
        raise NotFound(f"{target.api_version} has no kind {target.kind} with a scale subresource")

    def _call(
        self, method: str, path: str, *, query: Sequence[tuple[str, str]] = (), body: Json | list[Json] | None = None
    ) -> Json:
        request = f"{method} {path}"

        def send() -> Json:
            if self._permit is not None and method != "GET":
                self._permit()  # as late as possible, because the lease could expire between the check and the request
            self._on_request(method)
            response = self._open(method, path, query, limit_s=self._timeout_s, body=body)
            try:
                answer = json.loads(response.data)
            except urllib3.exceptions.HTTPError as error:
                raise self._unanswered(method, request, error) from error
            except ValueError as error:
                raise Failed(f"{request}: the response is not JSON: {error}") from error
            if not isinstance(answer, dict):
                raise Failed(f"{request}: the response is not a JSON object")
            return answer

        return self._authenticated(request, send)

    def _authenticated(self, request: str, send: Callable[[], _Answer]) -> _Answer:
        """Return the result of `send`; if the credentials are not accepted, reload them and send once more."""
        try:
            return send()
        except client.exceptions.UnauthorizedException:
            with self._lock:
                self._reload()  # the token may have been rotated on disk
        except client.ApiException as error:
            raise _translated(error, request) from None
        try:
            return send()
        except client.ApiException as error:
            raise _translated(error, request) from None

    def _open(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        *,
        limit_s: tuple[float, float],
        body: Json | list[Json] | None = None,
    ) -> Any:
        """Send a request and return the response, whose body is not read yet.

        `limit_s` has the time limits in seconds: to connect, and to receive each part of the response.
        """
        kind = kind_of(method, path, query)
        self._check_pauses(f"{method} {path}", kind)
        sent_s = boot_clock()
        try:
            response = self._client.call_api(
                path,
                method,
                query_params=[*query, *([] if body is None else [("fieldManager", FIELD_MANAGER)])],
                header_params={
                    "Accept": "application/json",
                    "Content-Type": _content_type(method, body),
                },
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=limit_s,
            )
        except client.ApiException as error:
            headers = error.headers or {}
            self.server_clock.answered(headers.get("Date"), sent_s)
            self._on_answer(None)
            if error.status in _OVERLOADED:
                wait_s = _retry_after_s(headers)
                why = "is overloaded" if wait_s is None else f"asked to retry after {wait_s:g} s"
                self._pause(kind, wait_s or _BUSY_S, f"the API server {why} (status {error.status})")
            raise
        except urllib3.exceptions.HTTPError as error:
            raise self._unanswered(method, f"{method} {path}", error) from error
        except AttributeError as error:
            # The client raises this for a broken TLS connection: it reads the body of an error that has none.
            if not isinstance(error.__context__, client.ApiException):
                raise
            silent = Silent(f"{method} {path}: {error.__context__.reason}")
            self._on_answer(silent)
            raise silent from error
        self.server_clock.answered(response.headers.get("Date"), sent_s)
        self._on_answer(None)
        return response

    def _unanswered(self, method: str, request: str, error: urllib3.exceptions.HTTPError) -> KubeError:
        """Return that the server is away; or, where it answers others, that this write got no answer.

        With `always_send`, the server is not asked: that would delay the next renewal of the lease.
        """
        timed_out = isinstance(error, urllib3.exceptions.ReadTimeoutError)
        if timed_out and method in _WRITES and not self._always_send and self._answers():
            return Hung(f"{request}: {error}")
        if isinstance(error, urllib3.exceptions.TimeoutError):
            self._pause("", _SILENCE_S, _SILENT)
        silent = Silent(f"{request}: {_words(error)}")
        self._on_answer(silent)
        return silent

    def _answers(self) -> bool:
        """Return whether the server answers a request that touches no object, and that no webhook sees."""
        limit_s = min(_PROBE_S, self._timeout_s[1])
        try:
            self._client.call_api(
                "/version", "GET", auth_settings=["BearerToken"], _preload_content=False, _request_timeout=limit_s
            )
        except client.ApiException as error:
            return error.status not in _OVERLOADED
        except (urllib3.exceptions.HTTPError, AttributeError):
            return False
        return True

    def _check_pauses(self, request: str, kind: str) -> None:
        """Raise `HeldBack` while requests of this kind, or all, are not sent."""
        for until_s, why in (self._paused.get(kind, (0.0, "")), self._paused.get("", (0.0, ""))):
            if boot_clock() < until_s and not self._always_send:
                raise HeldBack(f"{request}: not sent: {why}")

    def _pause(self, kind: str, seconds: float, why: str) -> None:
        with self._lock:  # an answer to another thread may have asked for a longer pause
            self._paused[kind] = max(self._paused.get(kind, (0.0, "")), (boot_clock() + seconds, why))

    def _reload(self) -> None:
        settings = _connect(self._kubeconfig).configuration
        self._client.configuration.api_key = settings.api_key
        self._client.configuration.refresh_api_key_hook = settings.refresh_api_key_hook


def _content_type(method: str, body: Json | list[Json] | None) -> str:
    if method != "PATCH":
        return "application/json"
    return _JSON_PATCH if isinstance(body, list) else _MERGE_PATCH


def _scale(body: Json) -> Scale:
    return Scale(
        replicas=body.get("spec", {}).get("replicas", 0),  # the server omits zero
        selector=body.get("status", {}).get("selector", ""),
        resource_version=body["metadata"]["resourceVersion"],
    )


def _connect(kubeconfig: Path | None) -> Any:
    settings = client.Configuration()
    settings.connection_pool_maxsize = _CONNECTIONS
    settings.retries = False  # the next cycle retries; retries of the client would multiply the time limit
    origin = "in the pod"
    try:
        if kubeconfig is None and "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=settings)
        else:
            origin = str(kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config")
            path = None if kubeconfig is None else str(kubeconfig)
            config.load_kube_config(config_file=path, client_configuration=settings, persist_config=False)
    except (config.ConfigException, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else _problem(str(error))
        raise ConfigurationError(f"no credentials for a Kubernetes API server: {origin}: {reason}") from error
    # The loader does not check the form of the file: what is not a kubeconfig ends in one of these.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
        form = f": {' '.join(str(error).split())}" if isinstance(error, yaml.YAMLError) else ""
        raise ConfigurationError(
            f"no credentials for a Kubernetes API server: {origin}: must be a kubeconfig{form or _FORM}"
        ) from error
    return client.ApiClient(configuration=settings)


def _problem(text: str) -> str:
    """Return what is wrong with a kubeconfig, from the message of its loader, without the name of the file."""
    if found := re.search(r"Expected object with name (?P<name>.+) in .*/(?P<kind>\w+)s list", text):
        return f"has no {found['kind']} named {found['name']!r}"
    if "No configuration found" in text:
        return "does not exist"
    return "is empty" if "file is empty" in text else " ".join(text.split())


def _words(error: urllib3.exceptions.HTTPError) -> str:
    """Return why there was no answer; of a failed connection without the classes of the client."""
    shape = r"HTTPS?Connection\(host='(?P<host>[^']*)', port=(?P<port>\d+)\): (?P<what>.*)"
    found = re.fullmatch(shape, str(error), re.DOTALL)
    if found is None:
        return str(error)
    why = re.sub(r"\[Errno -?\d+\] ", "", found["what"].removeprefix("Failed to establish a new connection: "))
    host = f"[{found['host']}]" if ":" in found["host"] else found["host"]
    return f"no connection to {host}:{found['port']}: {why}"


_BY_STATUS = {400: Invalid, 401: Forbidden, 403: Forbidden, 404: NotFound, 409: Conflict, 422: Invalid}


def kind_of(method: str, path: str, query: Sequence[tuple[str, str]] = ()) -> str:
    """Return the kind of a request: its verb and its resource without names.

    Such as `PATCH /apis/apps/v1/deployments/*/scale`. A Retry-After holds back requests of one kind.
    """
    parts = path.split("/")[1:]
    root, rest = (parts[:2], parts[2:]) if parts[0] == "api" else (parts[:3], parts[3:])
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    verb = "WATCH" if ("watch", "true") in query else method
    return f"{verb} /{'/'.join([*root, *(part if index != 1 else '*' for index, part in enumerate(rest))])}"


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the Retry-After of an answer in seconds, at most 30; None if there is none, or it is not positive.

    It is a number of seconds, or an HTTP date, which is compared with the date of the answer: both are of one clock.
    """
    text = headers.get("Retry-After", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("Date", ""))).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    return min(_LONGEST_WAIT_S, seconds) if seconds > 0 else None


def _translated(error: Any, request: str) -> KubeError:
    """Return the `KubeError` for an error of the client; a status that `_BY_STATUS` lacks counts as `Failed`."""
    try:
        message = json.loads(error.body)["message"]
    except (ValueError, TypeError, KeyError):
        message = error.reason
    unlisted = Unavailable if error.status in _OVERLOADED else Failed
    return _BY_STATUS.get(error.status, unlisted)(f"{request}: {error.status} {message}")
