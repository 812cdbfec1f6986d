"""What docs/rules.md shows and names is read, and exists."""

import re
from pathlib import Path

import yaml

from timekeeper.core.budgets.reader import read

PAGE = Path(__file__).parents[3] / "docs" / "rules.md"


def test_the_settings_that_are_shown_are_read_without_an_error() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)

    reading = read({"bursar-budgets": yaml.safe_load(shown)["data"]})

    assert reading.errors == ()
    assert set(reading.budgets) == {"team-a"}
    assert reading.settings is not None
    assert reading.settings.rules == (("host-path", "warn"), ("env-from", "off"))
