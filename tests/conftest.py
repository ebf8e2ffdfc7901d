"""Shared by all tests: one Spark session for the whole run, and Hypothesis profiles.

By default a test that uses Spark runs with the first of its sets of parameters, unless it is marked `every_session`,
and tests marked `long` do not run: what the sets vary is mostly the business of the operators, which have tests without
Spark. `--more` runs exactly what that leaves out (`make test-more`), `--all` everything.

With `--connect` the session is one of Spark Connect, whose server is a process of its own: the second lane of the Spark
tests (`make test-connect`). A test that needs the driver in its own process is marked `classic`, with the reason.

HYPOTHESIS_PROFILE=soak draws many more examples, different ones in every run; the default, `ci`, always draws
the same ones.
"""

import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter
    from pyspark.sql import SparkSession

# A busy machine is no failure: examples have no deadline and may be slow to draw.
patient = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", patient, derandomize=True)
settings.register_profile("soak", patient, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--connect", action="store_true", help="run the tests that use Spark in a Spark Connect session")
    parser.addoption("--more", action="store_true", help="run what is left out by default, and nothing else")
    parser.addoption("--all", action="store_true", help="run long tests and all sets of parameters, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if {"spark", "server"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.spark)
        classic = item.get_closest_marker("classic")
        if classic and config.getoption("--connect"):
            item.add_marker(pytest.mark.skip(reason=f"needs a classic session: {classic.args[0]}"))
    if not config.getoption("--all"):
        _deselect(config, items, more=config.getoption("--more"))


def _deselect(config: pytest.Config, items: list[pytest.Item], *, more: bool) -> None:
    first = {_test(item): item for item in reversed(items)}

    def is_more(item: pytest.Item) -> bool:
        has = {name: item.get_closest_marker(name) is not None for name in ("long", "spark", "every_session")}
        return has["long"] or (has["spark"] and not has["every_session"] and first[_test(item)] is not item)

    config.hook.pytest_deselected(items=[item for item in items if is_more(item) != more])
    items[:] = [item for item in items if is_more(item) == more]


def _test(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def pytest_terminal_summary(terminalreporter: "TerminalReporter") -> None:
    """Where the time of a long run went, by folder: the suite is to stay within minutes."""
    seconds, tests = Counter[str](), Counter[str]()
    for reports in terminalreporter.stats.values():
        for report in (one for one in reports if isinstance(one, pytest.TestReport)):
            folder = "/".join(report.nodeid.split("/")[:2])
            seconds[folder] += report.duration
            tests[folder] += report.when == "call"
    if seconds.total() > 300:
        terminalreporter.section("seconds of tests by folder")
        for folder, amount in seconds.most_common():
            terminalreporter.write_line(f"{amount:8.0f} s  {tests[folder]:6,} tests  {folder}")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server."""
    from tests.connect.server import ConnectServer

    running = ConnectServer(tmp_path_factory.mktemp("connect"))
    yield running.remote
    running.stop()


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> "Iterator[SparkSession]":
    # Imported here so that tests without Spark never start a JVM.
    from pyspark.sql import SparkSession

    import watersmeet as wm

    if request.config.getoption("--connect"):
        session = SparkSession.builder.remote(request.getfixturevalue("server")).getOrCreate()
    else:
        # Most queries here are over before the second compiler has made anything faster. With one compiler Java would
        # reserve 48 MB for its code, and stop to compile when hundreds of queries have filled that.
        quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"}
        session = wm.local_session(cores=2, partitions=2, config=quick)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def where(request: pytest.FixtureRequest) -> list[str]:
    """What tells the command line to run where the tests do."""
    if request.config.getoption("--connect"):
        return ["--remote", request.getfixturevalue("server")]
    return ["--master", "local[2]"]
