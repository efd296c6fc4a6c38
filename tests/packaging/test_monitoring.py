"""Dashboard, alert rules and their page use only metrics and labels that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from muster.streams.observability.group_gauges import PEAKS, SUMS, GroupsCollector
from muster.streams.observability.group_stats import GroupStats
from muster.streams.observability.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docker" / "monitoring"
PAGE = ROOT / "docs" / "operations.md"
SELECTOR = re.compile(r"\b(muster_[a-z_]+)(?:\{([^}]*)\})?")
GENERATED = ("_total", "_bucket", "_count", "_sum")
OF_PROMETHEUS = {"job", "instance", "le"}


def registry() -> CollectorRegistry:
    """A registry with all metrics of the coordinator's port."""
    metrics = Metrics()
    metrics.registry.register(GroupsCollector(GroupStats(metrics, {}, 1), lambda: 0))
    return metrics.registry


def metrics() -> dict[str, set[str]]:
    """Name of every possible sample → its labels."""
    own = Metrics()
    labels_by_metric: dict[str, set[str]] = {}
    for name, each in vars(own).items():
        if name == "registry":
            continue
        kind, labels = each._type, set(each._labelnames)
        endings = {"counter": ["_total"], "gauge": [""]}.get(kind, ["_bucket", "_count", "_sum"])
        labels_by_metric |= {each._name + ending: labels for ending in endings}
    build = next(m for m in own.registry.collect() if m.name == "muster_build_info")
    labels_by_metric["muster_build_info"] = set(build.samples[0].labels)
    return labels_by_metric | {f"muster_{k}": set(v[0]) for k, v in {**SUMS, **PEAKS}.items()}


def family(name: str) -> str:
    """The metric that a sample belongs to."""
    return next((name.removesuffix(e) for e in GENERATED if name.endswith(e)), name)


def dashboard() -> dict:
    """The dashboard's JSON."""
    return json.loads((FOLDER / "grafana" / "muster.json").read_text())


def expressions() -> Iterator[tuple[str, str]]:
    """(where, PromQL) of every query."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for rule in re.findall(r"^\s+expr: (.+)$", (FOLDER / "rules.yaml").read_text(), re.MULTILINE):
        yield "rules.yaml", rule
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"].replace("label_values", "")


def test_metrics_are_those_the_port_shows() -> None:
    """`metrics`, which the other tests use, has the metrics of a scrape."""
    described = {metric.name for metric in registry().collect()}
    assert {family(name) for name in metrics()} == described


@pytest.mark.parametrize(("where", "asked"), list(expressions()))
def test_what_is_asked_exists(where: str, asked: str) -> None:
    """Every metric and label in a query exists."""
    known = metrics()
    named = SELECTOR.findall(asked)
    assert named or "up{" in asked, where
    labels: set[str] = set()
    for name, selector in named:
        assert name in known, f"{where}: {name}"
        labels |= known[name]
        wanted = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
        assert wanted <= known[name] | OF_PROMETHEUS, f"{where}: {wanted - known[name]}"
    for grouping in re.findall(r"\b(?:by|on) \(([^)]*)\)", asked):
        wanted = {label.strip() for label in grouping.split(",")}
        assert wanted <= labels | OF_PROMETHEUS, f"{where}: {wanted - labels}"


def test_every_metric_is_on_the_page_and_none_that_is_not() -> None:
    """docs/operations.md has a row for each metric, with its labels, and no other row."""
    rows = re.findall(r"^\| `(muster_[a-z_]+)` \|([^|]*)\|", PAGE.read_text(), re.MULTILINE)
    on_page = {family(name): set(re.findall(r"\w+", labels)) for name, labels in rows}
    assert on_page == {family(name): labels for name, labels in metrics().items()}


def test_panels_have_places_and_numbers_of_their_own() -> None:
    """Panels have different ids, do not overlap and lie within the grid."""
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert (max(x for x, _ in cells) < 24, taken & cells) == (True, set()), panel["title"]
        taken |= cells


def test_every_alert_says_what_to_do_and_has_a_test() -> None:
    """Every alert has a severity, a summary and an action, and the rule tests name it."""
    rules, tests = ((FOLDER / name).read_text() for name in ("rules.yaml", "rules_test.yaml"))
    parts = rules.split("- alert: ")[1:]
    for part in parts:
        name = part.split()[0]
        assert all(key in part for key in ("severity:", "summary:", "action:")), name
        assert re.search(_matched_by(tests), name), f"{name} has no test"


def _matched_by(tests: str) -> str:
    """A pattern of all alerts that the rule tests name."""
    asked = re.findall(r'alertname(?:=~|=|: )"?([\w()|]+)', tests)
    return "|".join(f"^(?:{each})$" for each in asked)


@pytest.mark.parametrize("command", ["check", "test"])
def test_promtool_accepts_the_rules(command: str) -> None:
    """The rules are valid for Prometheus' own checker, and their tests pass."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool (Debian has it in the package prometheus)")
    file = {"check": "rules.yaml", "test": "rules_test.yaml"}[command]
    done = subprocess.run(
        [promtool, command, "rules", str(FOLDER / file)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_reads_what_the_dashboard_asks(tmp_path: Path) -> None:
    """Every panel's query is valid PromQL once Grafana's variables are filled in."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool (Debian has it in the package prometheus)")
    asked = [
        expr.replace("$__rate_interval", "5m").replace("$prefix", ".*").replace("$group", ".*")
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
        for expr in [target["expr"]]
    ]
    lines = [f"      - {{record: 'dashboard:{i}', expr: '{each}'}}" for i, each in enumerate(asked)]
    file = tmp_path / "dashboard.yaml"
    file.write_text("\n".join(["groups:", "  - name: dashboard", "    rules:", *lines]))
    done = subprocess.run(
        [promtool, "check", "rules", "--lint=none", str(file)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
