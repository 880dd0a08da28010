"""What moto does not model, in front of its server: spot prices, the price list, quotas and instance refreshes.

All other requests go on to moto.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from urllib.error import HTTPError
from urllib.parse import parse_qs
from urllib.request import Request, urlopen
from xml.sax.saxutils import escape

from aws_answers import a_product
from http_upstream import serving

_EC2 = "http://ec2.amazonaws.com/doc/2016-11-15/"
_AUTO_SCALING = "http://autoscaling.amazonaws.com/doc/2011-01-01/"
_NO_REFRESHES = (
    f'<DescribeInstanceRefreshesResponse xmlns="{_AUTO_SCALING}"><DescribeInstanceRefreshesResult><InstanceRefreshes/>'
    "</DescribeInstanceRefreshesResult></DescribeInstanceRefreshesResponse>"
).encode()


@dataclass
class AwsService:
    """Answers that a test sets: prices in USD per hour, and quotas in vCPUs by their code."""

    url: str = ""
    on_demand: dict[str, float] = field(default_factory=dict)
    spot: dict[tuple[str, str], float] = field(default_factory=dict)
    """By instance type and zone."""
    quotas: dict[str, float] = field(default_factory=dict)

    def answer(self, target: str, body: bytes) -> tuple[str, bytes] | None:
        """Return the content type and the body of an answer; None if moto has it."""
        match target.rpartition(".")[2]:
            case "GetProducts":
                return "application/x-amz-json-1.1", json.dumps({"PriceList": self._products(body)}).encode()
            case "GetServiceQuota":
                code = json.loads(body)["QuotaCode"]
                quota = {"QuotaCode": code, "Value": self.quotas[code]}
                return "application/x-amz-json-1.1", json.dumps({"Quota": quota}).encode()
        form = parse_qs(body.decode(errors="replace"))
        if form.get("Action") == ["DescribeSpotPriceHistory"]:
            return "text/xml", self._spot_prices({each for key in form for each in form[key] if "InstanceType" in key})
        if form.get("Action") == ["DescribeInstanceRefreshes"]:
            return "text/xml", _NO_REFRESHES
        return None

    def _products(self, body: bytes) -> list[str]:
        wanted = {each["Field"]: each["Value"] for each in json.loads(body)["Filters"]}
        price = self.on_demand.get(wanted["instanceType"])
        return [] if price is None else [a_product(wanted["instanceType"], str(price), wanted["regionCode"])]

    def _spot_prices(self, instance_types: set[str]) -> bytes:
        an_hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="seconds").replace("+00:00", "Z")
        items = "".join(
            f"<item><instanceType>{escape(name)}</instanceType><productDescription>Linux/UNIX</productDescription>"
            f"<spotPrice>{price}</spotPrice><timestamp>{an_hour_ago}</timestamp>"
            f"<availabilityZone>{escape(zone)}</availabilityZone></item>"
            for (name, zone), price in self.spot.items()
            if name in instance_types
        )
        document = (
            f'<DescribeSpotPriceHistoryResponse xmlns="{_EC2}"><requestId>r</requestId>'
            f"<spotPriceHistorySet>{items}</spotPriceHistorySet><nextToken/></DescribeSpotPriceHistoryResponse>"
        )
        return document.encode()


@contextmanager
def aws_service(moto: str) -> Iterator[AwsService]:
    """Serve an `AwsService` in front of moto's server at the address `moto`."""
    service = AwsService()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            found = service.answer(self.headers.get("X-Amz-Target", ""), body)
            if found is None:
                self._send(*_passed_on(f"{moto}{self.path}", dict(self.headers), body))
            else:
                self._send(200, *found)

        def _send(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as url:
        service.url = url
        yield service


def _passed_on(url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str, bytes]:
    kept = {name: value for name, value in headers.items() if name.lower() not in {"host", "connection"}}
    try:
        with urlopen(Request(url, data=body, headers=kept, method="POST"), timeout=10) as answer:
            return answer.status, answer.headers.get("Content-Type", ""), answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.headers.get("Content-Type", ""), error.read()
