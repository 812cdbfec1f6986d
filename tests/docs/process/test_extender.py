"""docs/extender.md against a running extender: its routes and metrics."""

import re
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from scheduler_ext.serving.read_port import read_app
from tests.docs.unit.test_extender import DOCS, METRICS
from tests.scheduler_ext.conftest import Running

API = (DOCS / "api.md").read_text().partition("\n## The extender\n")[2].partition("\n## ")[0]


def test_every_route_is_documented_and_no_other(running: Running) -> None:
    unused: Any = None  # no route is called
    exist = {
        f"{method} {rule.rule}"
        for app in (running.extender.app, read_app(unused, unused, unused, unused))
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }

    assert set(re.findall(r"`((?:GET|POST) /[\w/]+)`", API)) == exist


def test_every_metric_is_documented_with_its_labels_and_no_other(running: Running) -> None:
    text = running.client.get("/metrics").text
    families = [each for each in text_string_to_metric_families(text) if not each.name.endswith("_created")]
    suffix = {"counter": "_total", "gauge": "", "histogram": ""}
    exist = {each.name + suffix[each.type]: each for each in families}
    rows = re.findall(r"^\| (`.*?`) \| (\w+)(.*?) \|", METRICS.partition("| event |")[0], re.MULTILINE)
    on_page = {f"bursar_extender_{name}": row for row in rows for name in re.findall(r"`(\w+)`", row[0])}

    assert on_page.keys() == exist.keys()
    for name, (_, kind, labels) in on_page.items():
        used = {label for sample in exist[name].samples for label in sample.labels} - {"le"}
        assert kind == exist[name].type
        assert used <= set(re.findall(r"`(\w+)`", labels)), name
