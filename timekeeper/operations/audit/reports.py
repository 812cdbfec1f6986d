"""Audit output: lines for people, or one JSON document."""

import json
from typing import Protocol, TextIO

from timekeeper.operations.audit.audit import Checked
from timekeeper.operations.audit.finding import Finding


class Report(Protocol):
    """Receives findings one by one: there may be as many as sessions. ``count``: their number."""

    count: int

    def begin(self) -> None:
        """Before the first finding."""

    def tell(self, finding: Finding) -> None:
        """One finding."""

    def end(self, checked: Checked) -> None:
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
        line = "".join(c if c.isprintable() else " " for c in finding.sentence())
        self._out.write(line + "\n")

    def end(self, checked: Checked) -> None:
        """The number of checked rows."""
        seen = ", ".join(f"{count} {name}" for name, count in checked.wire().items())
        differs = f"{self.count} differences" if self.count != 1 else "1 difference"
        self._out.write(f"{differs if self.count else 'nothing differs'}: {seen}\n")


class Document:
    """`{version, differences: [...], checked: {...}}`, written as it grows."""

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

    def end(self, checked: Checked) -> None:
        """The document's end."""
        self._out.write(f'],\n"checked":{json.dumps(checked.wire())}}}\n')


def report_as(form: str, out: TextIO) -> Report:
    """``text`` or ``json``."""
    return Document(out) if form == "json" else Lines(out)
