"""Audit output: lines for people, or one JSON document."""

import json
from typing import Protocol, TextIO

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
