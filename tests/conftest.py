"""What all tests share: the session's one control plane, and the rule that in CI a skip is a failure."""

import os
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With CI=true nothing may be skipped but what needs a real GPU: a skip there hides a failure."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and "gpu" not in item.keywords:
        report.outcome = "failed"
        report.longrepr = f"skipped with CI=true: {report.longrepr}"
    return report
