"""Shared by all tests: one Spark session for the whole run, and Hypothesis profiles.

With `--connect` the session is one of Spark Connect, whose server is a process of its own: the second lane of the Spark
tests (`make test-connect`). It has every test of tests/spark once: of several sets of parameters the first one runs,
unless the test is marked `every_session` (`--connect=all` runs them all). What the sets vary is the business of the
operators, which are the same in both lanes. A test that needs the driver in its own process is marked `classic`, with
the reason.

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
    parser.addoption(
        "--connect",
        nargs="?",
        const="once",
        choices=("once", "all"),
        help="run the tests that use Spark in a Spark Connect session, each once or with all its parameters",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--connect") == "once":
        _keep_first_parameters(config, items)
    for item in items:
        if {"spark", "server"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.spark)
        classic = item.get_closest_marker("classic")
        if classic and config.getoption("--connect"):
            item.add_marker(pytest.mark.skip(reason=f"needs a classic session: {classic.args[0]}"))
    _begin_with_long_ones(items)


def _begin_with_long_ones(items: list[pytest.Item]) -> None:
    """Two workers get a half of the tests each: long ones come first in both."""
    long = [item for item in items if item.get_closest_marker("long")]
    others = [item for item in items if not item.get_closest_marker("long")]
    middle = len(items) // 2 - len(long[::2])
    items[:] = [*long[::2], *others[:middle], *long[1::2], *others[middle:]]


def _keep_first_parameters(config: pytest.Config, items: list[pytest.Item]) -> None:
    first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
    kept, left = [], []
    for item in items:
        runs = first[item.nodeid.partition("[")[0]] is item or item.get_closest_marker("every_session")
        (kept if runs else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


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
