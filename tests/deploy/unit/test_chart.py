"""The chart against its schema, its page and the code, without helm."""

import re
from pathlib import Path

import yaml

from deploy import rendered
from tests.deploy.reading import of_kind
from timekeeper.core import __version__
from timekeeper.core.admission.rules import denylist

# templates pass these on whole
WHOLE = {
    "policies",
    "spread",
    "dashboard.ingress",
    "dashboard.gateway",
    "nodeAgent.hostPaths",
    "timekeeper.storage",
}
WRITE = "write it anew: python -m deploy.generated"


def test_what_follows_from_the_schema_and_from_the_alerts_is_up_to_date() -> None:
    assert (rendered.CHART / "values.yaml").read_text() == rendered.values_yaml(), WRITE
    assert rendered.ALERTS.read_text() == rendered.alerts(), WRITE
    assert rendered.DEFAULTS.read_text() == rendered.defaults(), WRITE
    copies = {each: each.read_text() for each in rendered.DASHBOARDS.iterdir()}
    assert copies == rendered.dashboards(), WRITE


def test_every_value_is_named_by_a_template() -> None:
    """`tests/deploy/cluster/test_chart.py` sees under `make soak` that each changes what is rendered."""
    texts = [file.read_text() for file in (rendered.CHART / "templates").iterdir()]
    named = {each for text in texts for each in re.findall(r"\.Values\.([\w.]+)", text)}
    values = {path for path, _ in rendered.leaves(rendered.schema()["properties"])}

    assert {path for path in values if path.rpartition(".")[0] not in WHOLE} <= named
    assert named <= values | WHOLE


def test_every_object_of_values_refuses_names_that_it_does_not_know() -> None:
    def open_ones(schema: rendered.Schema, path: str) -> list[str]:
        inner: dict[str, rendered.Schema] = schema.get("properties", {})
        here = [path] if inner and schema.get("additionalProperties") is not False else []
        return here + [one for name, each in inner.items() for one in open_ones(each, f"{path}.{name}")]

    assert open_ones(rendered.schema(), "") == []


def test_the_policies_that_may_warn_are_those_that_say_what_is_refused() -> None:
    texts = [file.read_text() for file in (rendered.CHART / "templates").glob("*.yaml")]
    switched = {name for text in texts for name in re.findall(r'"bursar.actions" \(list \. "(\S+)"', text)}
    allowed = rendered.schema()["properties"]["policies"]["properties"]["warn"]["items"]["enum"]
    always = {"bursar-gpubudgets", "bursar-holds", "bursar-node-agent", "bursar-notices", "bursar-releases"}
    always |= {"bursar-kept-devices", "bursar-mode-labels"}

    assert sorted(switched) == allowed
    bindings = {each["metadata"]["name"] for each in of_kind("ValidatingAdmissionPolicyBinding")}
    assert {each.removesuffix("-observed") for each in bindings} == switched | always


def test_the_chart_has_the_version_of_the_code() -> None:
    chart = yaml.safe_load((rendered.CHART / "Chart.yaml").read_text())

    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_notes_name_a_daemon_set_by_the_host_paths_that_the_policies_refuse() -> None:
    text = (rendered.CHART / "templates" / "_refused.tpl").read_text()
    below, above = (re.compile(form.replace("\\\\", "\\")) for form in re.findall(r'"(\^/[^"]*)"', text))
    listed = [*denylist.HOST_PATHS, *denylist.HOST_PLACES, *(f"{stem}0" for stem in denylist.HOST_STEMS)]
    paths = {str(path) for place in listed for path in (Path(place), *Path(place).parents)}
    paths |= {f"/var{path}" for path in paths if path.startswith("/run")}
    paths |= {path + end for path in paths for end in ("/more", "x", "-other")}
    paths = {str(Path(path)).replace("//", "/") for path in paths}

    told = {path for path in paths if below.search(path) or above.search(path)}

    assert told == {path for path in paths if denylist.reaches_cards(path)}
