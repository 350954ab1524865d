"""Numbers that a test measured are shown at the end, also where all is well."""

import pytest


def pytest_terminal_summary(terminalreporter):
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and report.when == "call":
                for name, value in report.user_properties:
                    terminalreporter.write_line(f"{report.nodeid}: {name}: {value}")
