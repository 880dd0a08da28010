"""Dashboards as values, and their JSON in the schema of Grafana 10."""

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

SCHEMA_VERSION = 38
"""That of Grafana 10.0. Later releases migrate it."""
COLUMNS = 24
"""The width of a dashboard in Grafana's grid."""
_TAG = "sluice"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_ROW_HEIGHT = 1


class Kind(Enum):
    """The kinds of panels. The values are Grafana's types."""

    LINES = "timeseries"
    NUMBER = "stat"
    TABLE = "table"
    STATES = "state-timeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A PromQL query of a panel; `legend` is Grafana's format of the names of its series.

    `empty_because` says why the query returns nothing in a healthy run. It is empty for all others, which must return
    data. Tests check both; Grafana does not get it.
    """

    expr: str
    legend: str = ""
    empty_because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel. `question` is what it answers, and becomes the description.

    `unit` is one of Grafana's units. `limits` are (value, color), each color from its value on. `link` is the URL that
    a click on a series opens. `least` and `most` are the ends of the axis, None: as the data. `width` and `height` are
    in Grafana's grid.
    """

    title: str
    question: str
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    unit: str = "short"
    stacked: bool = False
    least: float | None = 0
    most: float | None = None
    limits: tuple[tuple[float, str], ...] = ()
    link: str = ""
    width: int = 12
    height: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A titled row of panels, which flow from left to right."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A template variable with the values of the label `name` of the metric `metric`, filtered by `where`."""

    name: str
    label: str
    metric: str
    where: str = ""
    multi: bool = False

    @property
    def query(self) -> str:
        """Return the query of the variable's values."""
        selector = f"{self.metric}{{{self.where}}}" if self.where else self.metric
        return f"label_values({selector}, {self.name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """Marks on all panels of a dashboard, at the times that are the values of `query`, in ms since the epoch."""

    name: str
    query: Query
    title: str
    text: str
    tags: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A dashboard. Its `uid` is part of its URL."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()
    annotations: tuple[Annotation, ...] = ()

    @property
    def panels(self) -> Iterator[Panel]:
        """Yield the panels of all rows."""
        for row in self.rows:
            yield from row.panels

    @property
    def queries(self) -> Iterator[Query]:
        """Yield the queries of all panels and annotations."""
        for panel in self.panels:
            yield from panel.queries
        for annotation in self.annotations:
            yield annotation.query


def document(dashboard: Dashboard) -> dict[str, Any]:
    """Return the JSON document of `dashboard`, as Grafana imports it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": [_TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "links": [
            {
                "type": "dashboards",
                "title": "Sluice",
                "tags": [_TAG],
                "asDropdown": True,
                "keepTime": True,
                "includeVars": False,
                "targetBlank": False,
                "icon": "external link",
                "tooltip": "",
                "url": "",
            }
        ],
        "templating": {"list": [_source_variable(), *map(_variable, dashboard.variables)]},
        "annotations": {"list": [_built_in_annotation(), *map(_annotation, dashboard.annotations)]},
        "panels": list(_panels(dashboard.rows)),
    }


def _panels(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield the rows and their panels with their places: from left to right, and a new line where one is full."""
    number, y = 0, 0
    for row in rows:
        number += 1
        place = {"h": _ROW_HEIGHT, "w": COLUMNS, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "panels": [], "gridPos": place}
        y += _ROW_HEIGHT
        x, height = 0, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            number += 1
            yield _panel(panel, number, {"h": panel.height, "w": panel.width, "x": x, "y": y})
            x, height = x + panel.width, max(height, panel.height)
        y += height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    ends = {"min": panel.least, "max": panel.most}
    defaults: dict[str, Any] = {"unit": panel.unit, **{end: at for end, at in ends.items() if at is not None}}
    if panel.limits:
        steps = [{"color": "green", "value": None}, *({"color": color, "value": at} for at, color in panel.limits)]
        defaults |= {"thresholds": {"mode": "absolute", "steps": steps}, "color": {"mode": "thresholds"}}
    if panel.link:
        defaults["links"] = [{"title": "Open", "url": panel.link}]
    options, custom = _options(panel)
    defaults["custom"] = custom
    found: dict[str, Any] = {
        "id": number,
        "type": panel.kind.value,
        "title": panel.title,
        "description": panel.question,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            _target(query, ref, panel.kind) for ref, query in zip(string.ascii_uppercase, panel.queries, strict=False)
        ],
    }
    if panel.kind is Kind.TABLE:
        hidden = {"Time": True, "Value": True}
        found["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return found


def _options(panel: Panel) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a panel, and the custom options of its fields."""
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
    match panel.kind:
        case Kind.LINES:
            stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
            fill = 30 if panel.stacked else 0
            custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": fill, "showPoints": "never"}
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}, custom | {"stacking": stacking}
        case Kind.NUMBER:
            last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
            return {"reduceOptions": last, "colorMode": "value", "graphMode": "area", "textMode": "auto"}, {}
        case Kind.TABLE:
            return {"showHeader": True, "cellHeight": "sm"}, {"align": "auto"}
        case Kind.STATES:
            options = {"mergeValues": True, "showValue": "never", "rowHeight": 0.9, "legend": legend}
            return options, {"lineWidth": 0, "fillOpacity": 70}


def _target(query: Query, ref: str, kind: Kind) -> dict[str, Any]:
    now = kind is Kind.TABLE
    return {
        "refId": ref,
        "datasource": _SOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "format": "table" if now else "time_series",
        "instant": now,
        "range": not now,
    }


def _source_variable() -> dict[str, Any]:
    return {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "refresh": 1}


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "type": "query",
        "name": variable.name,
        "label": variable.label,
        "datasource": _SOURCE,
        "definition": variable.query,
        "query": {"query": variable.query, "refId": f"variable-{variable.name}"},
        "refresh": 2,
        "sort": 1,
        "multi": variable.multi,
        "includeAll": variable.multi,
        **({"allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}} if variable.multi else {}),
    }


def _built_in_annotation() -> dict[str, Any]:
    return {
        "builtIn": 1,
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": True,
        "iconColor": "rgba(0, 211, 255, 1)",
        "name": "Annotations & Alerts",
        "type": "dashboard",
    }


def _annotation(annotation: Annotation) -> dict[str, Any]:
    return {
        "name": annotation.name,
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "blue",
        "expr": annotation.query.expr,
        "step": "15s",
        "titleFormat": annotation.title,
        "textFormat": annotation.text,
        "tagKeys": annotation.tags,
        # The value is the time of the decision itself, which is more exact than that of a scrape.
        "useValueForTime": True,
    }
