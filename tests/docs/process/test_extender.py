"""The routes of a running extender are those of docs/api.md."""

import re
from typing import Any

from scheduler_ext.serving.read_port import read_app
from tests.docs.unit.test_extender import DOCS
from tests.scheduler_ext.conftest import Running

API = (DOCS / "api.md").read_text().partition("\n## The extender\n")[2].partition("\n## ")[0]


def test_every_route_is_documented_and_no_other(running: Running) -> None:
    unused: Any = None  # no route is called
    exist = {
        f"{method} {rule.rule}"
        for app in (running.extender.app, read_app(unused, running.extender.read_sources))
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }

    exist |= {f"POST {path}" for path in running.extender.calls}

    assert set(re.findall(r"`((?:GET|POST) /[\w/]+)`", API)) == exist
