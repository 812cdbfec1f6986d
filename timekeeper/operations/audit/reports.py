"""Audit output: lines for people, one JSON document, or metrics for Prometheus."""

import json
from collections.abc import Callable
from typing import Protocol, TextIO

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from timekeeper.operations.audit.audit import Checked
from timekeeper.operations.audit.cluster import ClusterComparison
from timekeeper.operations.audit.finding import Finding


class Report(Protocol):
    """Receives findings one by one: there may be as many as sessions. ``count``: their number."""

    count: int

    def begin(self) -> None:
        """Before the first finding."""

    def tell(self, finding: Finding) -> None:
        """One finding."""

    def end(self, checked: Checked, cluster: ClusterComparison | None) -> None:
        """After the last one."""


class Lines:
    """One line per finding, and one at the end."""

    def __init__(self, out: TextIO) -> None:
        self.count = 0
        self._out = out

    def begin(self) -> None:
        """No output before the findings."""

    def tell(self, finding: Finding) -> None:
        """One line; control characters in users' names are escaped."""
        self.count += 1
        self._line(finding.sentence())

    def end(self, checked: Checked, cluster: ClusterComparison | None) -> None:
        """What the comparison with the cluster found, and the number of checked rows."""
        if cluster is not None:
            for line in cluster.sentences():
                self._line(line)
        seen = ", ".join(f"{count} {name}" for name, count in checked.wire().items())
        differs = f"{self.count} differences" if self.count != 1 else "1 difference"
        self._out.write(f"{differs if self.count else 'nothing differs'}: {seen}\n")

    def _line(self, text: str) -> None:
        self._out.write("".join(c if c.isprintable() else " " for c in text) + "\n")


class Document:
    """`{version, differences: [...], checked: {...}, cluster: {...}}`, written as it grows. ``cluster`` is
    absent where pods were not compared."""

    def __init__(self, out: TextIO) -> None:
        self.count = 0
        self._out = out

    def begin(self) -> None:
        """The document's head."""
        self._out.write('{"version":1,"differences":[')

    def tell(self, finding: Finding) -> None:
        """One element."""
        self._out.write(("," if self.count else "") + "\n" + json.dumps(finding.wire()))
        self.count += 1

    def end(self, checked: Checked, cluster: ClusterComparison | None) -> None:
        """The document's end."""
        compared = "" if cluster is None else f',\n"cluster":{json.dumps(cluster.wire())}'
        self._out.write(f'],\n"checked":{json.dumps(checked.wire())}{compared}}}\n')


class AuditMetrics:
    """The number of findings and the time of the audit, in Prometheus' text format."""

    def __init__(self, out: TextIO) -> None:
        self.count = 0
        self._out = out

    def begin(self) -> None:
        """No output before the end."""

    def tell(self, _finding: Finding) -> None:
        """It is counted."""
        self.count += 1

    def end(self, _checked: Checked, _cluster: ClusterComparison | None) -> None:
        """All of it at once, so that an audit that was interrupted reports nothing."""
        registry = CollectorRegistry()
        Gauge("bursar_audit_findings", "Differences that the last audit found", registry=registry).set(
            self.count
        )
        at = Gauge("bursar_audit_timestamp_seconds", "Unix time of the last audit", registry=registry)
        at.set_to_current_time()
        self._out.write(generate_latest(registry).decode())


def report_as(form: str, out: TextIO) -> Report:
    """``text``, ``json`` or ``prometheus``."""
    forms: dict[str, Callable[[TextIO], Report]] = {"json": Document, "prometheus": AuditMetrics}
    return forms.get(form, Lines)(out)
