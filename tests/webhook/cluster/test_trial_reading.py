"""Manifests and amounts: the command reads them as kubectl and a real API server do."""

import json
import subprocess
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from tests.webhook.unit.test_trial_reading import only
from webhook.wire import defaulting

# fmt: off
WORDS = [
    "yes", "1e3", "0o17", "017", "08", "2001-01-01", "1:30", "y", "n", "N", "Y", "1_000", "0x1F", "0b101",
    "+5", ".5", "5.", "~", "-0", "1e400", "On", "<<", "0.1", "1E-3", "1_0.5", "_1", "0x1_F", "-0b11", "0b",
    "1e21",
    "1e20", "0.", "1__0", "12e03", "0o8", "-017", "+.5", "00", "0b2", "2001-01-01T00:00:00Z", "-0o17", "0x",
    "1e", "1.e3", "+0x1F", "1.", ".e3", "NULL", "Null", "nUll", "1_", "0_7", "0o_7", "0.0", "-0.0", "1e-7",
    "123456789.125", "1e+3", "0b1_1", "-08", "+017", "=", "1,000", "12:30:45", ".1_0", "0X1f", "0B1", "0O7",
    "-0x10", "-.5e3", "1e999", "0777", "off", "OFF", "No", "9223372036854775807", "-9223372036854775808",
    "99999999999999999999", "190:20:30", "-1:30", "2026-01-01 10:00:00", "1e1_0", "0x7fffffffffffffff",
    "0x10000000000000000", "1" * 100, "-1e400", "5Gi", "0.0.0.0/0",
]
# fmt: on
OTHER_VALUES = [
    '"5"',
    "'yes'",
    "!!str 5",
    '!!int "5"',
    "!!bool yes",
    "|\n    a\n    b",
    ">-\n    a\n    b",
    "{a: 1, b: [x, {c: ~}]}",
    "[]",
    '"a\\u00e9\\n"',
]


def test_scalars_are_what_kubectl_makes_of_them(control_plane: ControlPlane) -> None:
    fields = [f"f{index}: {value}" for index, value in enumerate([*WORDS, *OTHER_VALUES])]

    theirs = kubectls(control_plane, "\n  ".join(fields))
    ours = only("spec:\n  " + "\n  ".join(fields)).value["spec"]

    assert json.dumps(ours, sort_keys=True) == json.dumps(theirs, sort_keys=True)
    assert len(ours) == len(WORDS) + len(OTHER_VALUES)


QUANTITIES = [
    *(8000, 0, 50.0, 0.5, 100000000000, "8k", "8000", "8e3", "1e3", "12e6", "1.5Gi", "1024Ki", "4Ki", "1023"),
    *("1536Mi", "0.5Ki", "500m", "1.5", "1000m", "0.1", ".5", "100n", "0.1n", "1e-3", "12E", "1000k", "0Ki"),
    *("2Ei", "123456789012345678", "0.000000001", "1500u", "9e18", "0008000", "8000.000", "+8000", "80e2"),
]


@pytest.mark.parametrize("amount", QUANTITIES, ids=str)
def test_amounts_are_spelt_as_the_api_server_spells_them(control_plane: ControlPlane, amount: object) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.memory": amount}}}

    stored = control_plane.api.call("POST", "/api/v1/namespaces/default/resourcequotas?dryRun=All", quota)

    assert defaulting.quantity(amount) == stored["spec"]["hard"]["limits.memory"]


def kubectls(control_plane: ControlPlane, spec: str) -> Any:
    """What kubectl makes of the value of a field."""
    done = subprocess.run(
        [str(control_plane.kubectl_path), "annotate", "--local", "-f", "-", "x=y", "-o", "json"],
        input=f"apiVersion: x/v1\nkind: Foo\nmetadata: {{name: a}}\nspec:\n  {spec}\n",
        capture_output=True,
        text=True,
        env={},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["spec"]


@pytest.mark.parametrize(
    "spec",
    [
        "1: a\n  true: b\n  2.5: c\n  no: d\n  0x10: e",
        "<<: {a: 1, b: 2}\n  b: 3",
        "b: 3\n  <<: {a: 1, b: 2}",
        "<<: {a: 1, b: 2}\n  <<: {b: 3}",
        "x: &x {a: 1, b: 2}\n  y: &y {a: 5, c: 3}\n  z: {<<: [*x, *y], b: 7}\n  w: *x",
        "x: &x 5\n  y: [*x, *x]",
        "x: &x 5\n  y: &x 6\n  z: *x",
        "a: 1\r\n  b: |\r\n    x\r\n    y\r\n  c: yes\r",
        "a:\t1\t# x\n  b: [1,\t'x\ty']",
    ],
    ids=[
        "keys",
        "merge",
        "merge behind",
        "two merges",
        "several merges",
        "aliases",
        "anchors",
        "carriage returns",
        "tabs",
    ],
)
def test_keys_merges_and_aliases_are_what_kubectl_makes_of_them(
    control_plane: ControlPlane, spec: str
) -> None:
    assert only(f"spec:\n  {spec}").value["spec"] == kubectls(control_plane, spec)
