"""Counts what the fault tests found: the last line of `make faults` is one JSON object.

`faults` are the tests that ran, `survived` those that passed, `hung` those that ran into a deadline; `lost` and `duplicated` are the
findings of all audits of that kind.
"""

import json
from collections.abc import Iterator

import pytest

from tests.support import audited

SWITCH = "--fault-summary"
_DEADLINES = ("Timeout >", "TimeoutError", "never came true", "WaitTimedOut")
_counts: pytest.StashKey[dict[str, int]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Read from the command line alone, so the folder must be named on it."""
    parser.addoption(SWITCH, action="store_true", help="print what the fault tests found, as JSON, as the last line")


def pytest_configure(config: pytest.Config) -> None:
    """Nothing was found yet."""
    config.stash[_counts] = {"faults": 0, "survived": 0, "hung": 0}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Every test is a fault; one that fails when it is set up or taken down has not survived either."""
    report: pytest.TestReport = yield  # type: ignore[assignment] # the hook's answer
    counts = item.config.stash[_counts]
    if report.when == "call":
        counts["faults"] += 1
        counts["survived"] += report.passed
    elif report.failed and report.when == "setup":
        counts["faults"] += 1
    elif report.failed:
        counts["survived"] -= 1
    if report.failed and any(word in report.longreprtext for word in _DEADLINES):
        counts["hung"] += 1
    return report


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """After everything else that pytest prints."""
    if getattr(config.option, "fault_summary", False):  # it is unknown where the folder was not named
        counts = config.stash[_counts]
        found = {
            "faults": counts["faults"],
            "survived": counts["survived"],
            "lost": audited.found.lost,
            "duplicated": audited.found.duplicated,
            "hung": counts["hung"],
        }
        print(json.dumps(found), flush=True)  # noqa: T201 - it is what `make faults` is called for
