"""The alerts, and the Prometheus rule file that they make. `docs/runbook.md` has a section for each."""

from dataclasses import dataclass

import yaml

from controller.kube.server_clock import REPORTED_S
from controller.monitoring.promql import CUT_SESSIONS, INSTALLATION, OBJECTIVE, PIPELINE, burn_rate, gauge, series

RUNBOOK = "__RUNBOOK_URL__"
"""Stands for the URL of `docs/runbook.md`; the installation of the rules replaces it."""
UNANSWERED = 0.1
"""Share of unanswered queries above which the alert fires: a single query of a small fleet that fails once is less."""
UNSEEN_S = 120
"""Time without an observation of the demand after which the alert fires: the safety factor has begun to grow."""
FAR = 2
"""Factor between the measured and the declared service time from which the declared one is to be checked."""
_HEADER = """\
# Generated from controller/monitoring by `make dashboards`. Do not edit.
# Replace __RUNBOOK_URL__ by the URL of docs/runbook.md.
"""
_DAYS = 30
"""The error budget is that of so many days. Burn rates follow the Google SRE workbook, chapter 5."""
_FAST, _SLOW = 14.4, 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert that fires when `expr` has had a result for the time `wait`, and ends `keep` after it has none."""

    name: str
    expr: str
    severity: str
    summary: str
    description: str
    wait: str
    keep: str | None = None

    @property
    def anchor(self) -> str:
        """Return the anchor of the alert's section in the runbook."""
        return self.name.lower()


def _burns(rate: float, window: str, short: str) -> str:
    """Return the PromQL for a burn rate that was exceeded in the whole window, and still is in its last part."""
    return f"{burn_rate(window)} > {rate:g} and {burn_rate(short)} > {rate:g}"


# Not humanize, which writes 0.25 as 250m.
_NUMBER, _MONEY = '{{ $value | printf "%.3g" }}', '{{ $value | printf "%.2f" }}'
_OF_PIPELINE = "{{ $labels.namespace }}/{{ $labels.pipeline }}"
_CAUSES = (
    ' Diagnosis: {{ range printf "sluice_pipeline_cause{namespace=%q,pipeline=%q}" $labels.namespace $labels.pipeline '
    "| query }}{{ .Labels.cause }}{{ if .Labels.stage }} at {{ .Labels.stage }}{{ end }} "
    "({{ .Value | humanizePercentage }}). {{ else }}no cause was found. {{ end }}"
    "See `sluice diagnose {{ $labels.namespace }}/{{ $labels.pipeline }}`."
)
"""What the diagnosis says at the moment in which the alert is sent."""
_SPEND = gauge("pipeline_spend_usd_per_hour", by=PIPELINE)
_BUDGET = gauge("pipeline_budget_usd_per_hour", by=PIPELINE)
_FACTOR = gauge("placement_service_factor", by=f"{PIPELINE}, stage, pool")

ALERTS = (
    Alert(
        name="SluiceSLAFastBurn",
        expr=_burns(_FAST, "1h", "5m"),
        wait="2m",
        severity="critical",
        summary=f"{_OF_PIPELINE} misses its SLA",
        description=(
            f"The latency of {_OF_PIPELINE} exceeds the SLA so often that the error budget of {_DAYS} days "
            f"({1 - OBJECTIVE:.0%} of the time) is used {_NUMBER} times faster than allowed. At "
            f"{_FAST:g} times it lasts two days.{_CAUSES}"
        ),
    ),
    Alert(
        name="SluiceSLASlowBurn",
        expr=_burns(_SLOW, "6h", "30m"),
        wait="15m",
        severity="warning",
        summary=f"{_OF_PIPELINE} often misses its SLA",
        description=(
            f"In the last six hours the error budget of {_OF_PIPELINE} ({1 - OBJECTIVE:.0%} of the time) was used "
            f"{_NUMBER} times faster than allowed. At {_SLOW:g} times it lasts five days.{_CAUSES}"
        ),
    ),
    Alert(
        name="SluiceBudgetExceeded",
        # Sums of the same prices in another order differ by less than a millionth of a dollar.
        expr=f"{_SPEND} > {_BUDGET} + 1e-6 and {gauge('pipeline_budget_excused', by=PIPELINE)} == 0",
        wait="5m",
        severity="warning",
        summary=f"{_OF_PIPELINE} costs more than its budget",
        description=(
            f"The replicas of {_OF_PIPELINE} cost {_MONEY} USD per hour, which is above "
            "budget.perHour, and not because replicas drain. No change by Sluice exceeds a budget."
        ),
    ),
    Alert(
        name="SluiceFleetBudgetExceeded",
        expr=(
            f"{gauge('fleet_spend_usd_per_hour', by=INSTALLATION)}"
            f" > {gauge('fleet_budget_usd_per_hour', by=INSTALLATION)} + 1e-6"
        ),
        wait="10m",
        severity="warning",
        summary="the fleet costs more than its budget",
        description=(
            f"All replicas together cost {_MONEY} USD per hour, which is above --fleet-budget of "
            "{{ $labels.job }}. No change by Sluice exceeds a budget."
        ),
    ),
    Alert(
        name="SluiceComputeBudgetExceeded",
        expr=(
            f"{gauge('budget_spend_usd_per_hour', by='budget')}"
            f" > {gauge('budget_limit_usd_per_hour', by='budget')} + 1e-6"
            f" and {gauge('budget_excused', by='budget')} == 0"
        ),
        wait="5m",
        severity="warning",
        summary="the pipelines of ComputeBudget {{ $labels.budget }} cost more than it allows",
        description=(
            f"The replicas of the pipelines of ComputeBudget {{{{ $labels.budget }}}} cost {_MONEY} USD per hour, "
            "which is above its limit, and not because replicas drain. No change by Sluice exceeds a budget."
        ),
    ),
    Alert(
        name="SluiceMetricsLost",
        expr=f"{gauge('demand_unseen_seconds', by=PIPELINE)} > {UNSEEN_S}",
        wait="1m",
        severity="warning",
        summary=f"the demand of {_OF_PIPELINE} is not observed",
        description=(
            f"No source has had the demand of {_OF_PIPELINE} for {{{{ $value | humanizeDuration }}}}. Sluice plans for "
            "the last demand with a safety factor and removes no replica."
        ),
    ),
    Alert(
        name="SluiceQueriesUnanswered",
        expr=f"{gauge('metrics_unanswered_ratio', by='kind')} > {UNANSWERED}",
        wait="15m",
        severity="warning",
        summary="{{ $labels.kind }} queries have no answer",
        description=(
            "{{ $value | humanizePercentage }} of the operator's {{ $labels.kind }} queries to Prometheus have no "
            "answer within the cycle. Pipelines without data keep their replicas."
        ),
    ),
    Alert(
        name="SluicePoolCannotDeliver",
        expr=f"{gauge('pool_unavailable', by='pool')} == 1",
        wait="2m",
        keep="10m",
        severity="warning",
        summary="pool {{ $labels.pool }} cannot deliver",
        description=(
            "Replicas on pool {{ $labels.pool }} got no ready node before their deadline. Plans avoid the pool, and "
            "one replica tries it again from time to time."
        ),
    ),
    Alert(
        name="SluiceQuotaZero",
        expr=f"{gauge('pool_quota_instances', by='pool, code')} == 0",
        wait="5m",
        severity="warning",
        summary="quota {{ $labels.code }} allows no instance of pool {{ $labels.pool }}",
        description=(
            "The vCPU quota {{ $labels.code }} of the AWS account allows no instance of pool {{ $labels.pool }}: it is "
            "0, as in new accounts, or others use it up. Plans leave the pool out."
        ),
    ),
    Alert(
        name="SluiceNotDeciding",
        expr=(
            f"time() - {gauge('last_success_timestamp_seconds', by=INSTALLATION)}"
            f" > 60 + 4 * {gauge('cycle_interval_seconds', by=INSTALLATION)}"
        ),
        wait="1m",
        severity="critical",
        summary="{{ $labels.job }} does not decide",
        description=(
            "The operator {{ $labels.job }} has completed no cycle for more than four intervals and a minute. No "
            "pipeline is scaled."
        ),
    ),
    Alert(
        name="SluiceNoLeader",
        expr=f"{gauge('leader', by=INSTALLATION)} == 0 or absent({series('leader')})",
        wait="2m",
        severity="critical",
        summary="no replica of the operator leads",
        description=(
            "No replica of the operator holds the lease, or Prometheus scrapes none. No pipeline is scaled until one "
            "leads."
        ),
    ),
    Alert(
        name="SluiceStatusRefused",
        expr=f"{gauge('pipeline_status_refused', by=PIPELINE)} == 1",
        wait="2m",
        severity="warning",
        summary=f"the API server refuses the status of {_OF_PIPELINE}",
        description=(
            f"The status of {_OF_PIPELINE} cannot be written and shows an earlier decision. The Event StatusRefused "
            "says why, and whether the pipeline is scaled meanwhile."
        ),
    ),
    Alert(
        name="SluiceInvalidResources",
        expr=f"{gauge('invalid_resources', by=INSTALLATION)} > 0",
        wait="5m",
        severity="warning",
        summary="resources of {{ $labels.job }} are invalid",
        description=(
            f"{_NUMBER} SpeechPipelines, ComputePools or ComputeBudgets have a spec that the operator "
            "{{ $labels.job }} cannot use. Pipelines keep their replicas, and ComputeBudgets their last valid spec."
        ),
    ),
    Alert(
        name="SluiceClockSkew",
        expr=f"abs({gauge('clock_skew_seconds', by=INSTALLATION)}) > {REPORTED_S:g}",
        wait="5m",
        severity="warning",
        summary="the clocks of {{ $labels.job }} and of the API server differ",
        description=(
            f"The clocks of the operator {{{{ $labels.job }}}} and of the API server are {_NUMBER} seconds apart. "
            "Decisions use the API server's clock."
        ),
    ),
    Alert(
        name="SluiceConflict",
        expr=gauge("pipeline_hold", by=PIPELINE, where='reason="Conflict"') + " > 0",
        wait="2m",
        severity="warning",
        summary=f"another controller scales {_OF_PIPELINE}",
        description=(
            f"Another controller sets the replicas of a workload of {_OF_PIPELINE}. Sluice does not change this "
            "pipeline."
        ),
    ),
    Alert(
        name="SluiceLawFarFromDeclared",
        expr=f"{_FACTOR} > {FAR} or {_FACTOR} < {1 / FAR:g}",
        wait="15m",
        severity="info",
        summary=f"service time of {_OF_PIPELINE}, stage {{{{ $labels.stage }}}}, is far from the declared one",
        description=(
            f"The measured mean service time of stage {{{{ $labels.stage }}}} of {_OF_PIPELINE} on pool "
            f"{{{{ $labels.pool }}}} is {_NUMBER} times the declared one. Plans use what is measured."
        ),
    ),
    Alert(
        name="SluiceDemandNotServed",
        expr=f"{gauge('pipeline_served_ratio', by=PIPELINE)} < 1",
        wait="5m",
        keep="5m",
        severity="warning",
        summary=f"not all demand of {_OF_PIPELINE} can be served",
        description=(
            f"Only {{{{ $value | humanizePercentage }}}} of the demand of {_OF_PIPELINE} can be served within the SLA. "
            "An ingress that obeys status.admissible refuses the rest."
        ),
    ),
    Alert(
        name="SluiceDeadlineMissed",
        expr=f"{gauge('pipeline_backlog_late', by=PIPELINE)} == 1",
        wait="15m",
        keep="5m",
        severity="warning",
        summary=f"the backlog of {_OF_PIPELINE} misses its deadline",
        description=(
            f"The backlog of {_OF_PIPELINE} is not expected to be done by its deadline. The condition DeadlineMet says "
            "when it is, and what limits it."
        ),
    ),
    Alert(
        name="SluiceStreamsRefused",
        expr=f"{gauge('stage_refusals_per_second', by=f'{PIPELINE}, stage')} > 0",
        wait="2m",
        severity="warning",
        summary=f"stage {{{{ $labels.stage }}}} of {_OF_PIPELINE} refuses streams",
        description=(
            f"Stage {{{{ $labels.stage }}}} of {_OF_PIPELINE} refuses {_NUMBER} streams per second, "
            "because no replica has a free slot."
        ),
    ),
    Alert(
        name="SluiceStreamsCut",
        expr=f"sum by ({PIPELINE}) (rate({CUT_SESSIONS}[5m])) > 0",
        wait="1m",
        severity="warning",
        summary=f"streams of {_OF_PIPELINE} are cut",
        description=(f"{_NUMBER} streams per second of {_OF_PIPELINE} lose their replica before they end."),
    ),
)
"""All alerts, in the order of the runbook."""


BURN_RECORDS = {f"pipeline:sluice_error_budget_burn:{window}": burn_rate(window) for window in ("1h", "6h")}
"""Recording rules by name: how many times faster than allowed each pipeline uses its error budget."""


def rule_file() -> str:
    """Return the Prometheus rule file with all alerts, and the recording rules of the error budget."""
    rules = []
    for alert in ALERTS:
        keep = {} if alert.keep is None else {"keep_firing_for": alert.keep}
        rules.append(
            {
                "alert": alert.name,
                "expr": alert.expr,
                "for": alert.wait,
                **keep,
                "labels": {"severity": alert.severity},
                "annotations": {
                    "summary": alert.summary,
                    "description": alert.description,
                    "runbook_url": f"{RUNBOOK}#{alert.anchor}",
                },
            }
        )
    records = [{"record": name, "expr": expr} for name, expr in BURN_RECORDS.items()]
    groups = {"groups": [{"name": "sluice", "rules": rules}, {"name": "sluice-error-budget", "rules": records}]}
    return _HEADER + yaml.safe_dump(groups, sort_keys=False, width=120, allow_unicode=True)
