"""Which connector fits which Spark: the table, what a pipeline file may name, what is refused before a start."""

import re
from pathlib import Path

import pyspark
import pytest
from typer.testing import CliRunner

from watersmeet.cli import app
from watersmeet.errors import OptionError, WatersmeetError
from watersmeet.pipeline import jars
from watersmeet.pipeline.config import load
from watersmeet.pipeline.connectors import CONNECTORS, advice, complete_release, coordinates, jars_of, misfit, settings
from watersmeet.pipeline.origins import ORIGINS
from watersmeet.pipeline.problems import PipelineError
from watersmeet.pipeline.session import package_notes, package_problems
from watersmeet.pipeline.starter import STARTERS, init


def test_every_jar_is_named_by_its_coordinates_and_fits_its_release() -> None:
    for name, releases in CONNECTORS.items():
        for release, listed in releases.items():
            assert all(jar.count(":") == 2 for jar in listed)
            assert misfit(listed[0], f"{release}.9") is None
            assert misfit(listed[0], "3.5.0") is not None, f"{name}: the connector itself comes first"


def test_coordinates_are_those_of_the_release() -> None:
    assert coordinates("kafka", "4.1.4") == coordinates("KAFKA", "4.1.0")
    assert coordinates("kafka", "4.1.4") != coordinates("kafka", "4.2.1")
    assert coordinates("kafka", "4.10.0") is None
    assert coordinates("parquet", "4.1.4") is None


def test_the_lock_has_the_newest_release_that_has_all() -> None:
    lock = (Path(__file__).parents[3] / "requirements.lock").read_text(encoding="utf-8")
    assert re.findall(r"^pyspark==(\d+\.\d+)\.", lock, re.MULTILINE) == [complete_release()]


def test_jars_of_several_connectors() -> None:
    both = jars_of(["kafka", "delta", "kafka"], "4.1.4")
    assert (
        len(both)
        == len(set(both))
        == len(coordinates("kafka", "4.1.4") or ()) + len(coordinates("delta", "4.1.4") or ())
    )
    with pytest.raises(OptionError, match=r"expected a connector for Spark 4\.1\.4, found 'kafak'. Known are kafka, "):
        jars_of(["kafak"], "4.1.4")
    with pytest.raises(OptionError, match=r"No iceberg connector for Spark 4\.2 is known"):
        jars_of(["iceberg"], "4.2.1")


def test_the_advice() -> None:
    assert "`packages: [delta]`" in str(advice("delta", "4.2.1"))
    assert "install pyspark==4.1.*" in str(advice("iceberg", "4.2.1"))
    assert advice("parquet", "4.1.4") is None


def test_settings_of_the_pipeline_win_and_extensions_are_joined() -> None:
    merged = settings(["delta", "iceberg", "kafka"], {"spark.sql.catalog.spark_catalog": "mine"})
    assert merged["spark.sql.catalog.spark_catalog"] == "mine"
    assert merged["spark.sql.extensions"].split(",") == [
        "io.delta.sql.DeltaSparkSessionExtension",
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    ]
    assert settings(["delta"], merged) == merged  # nothing is added twice


@pytest.mark.parametrize(
    ("package", "version", "words"),
    [
        ("kafka", "4.3.0", "No kafka connector for Spark 4.3 is known. There is one for Spark 4.1 and 4.2"),
        (
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
            "4.2.1",
            "is for Spark 4.1, but this is Spark 4.2.1. Use `kafka`",
        ),
        ("org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.1", "4.1.4", "is for Spark 3.5 and Scala 2.12"),
        ("org.apache.spark:spark-avro_2.12:4.1.1", "4.1.4", "and Scala 2.12, but this is Spark 4.1.4 with Scala 2.13"),
        ("io.delta:delta-spark_4.2_2.13:4.4.0", "4.1.4", "is for Spark 4.2, but this is Spark 4.1.4"),
        ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", "4.3.0", "No iceberg connector for Spark 4.3"),
        ("org.apache.spark:spark-avro_2.13:4.1.1", "4.2.1", "There is one for Spark 4.1"),
    ],
)
def test_a_package_for_another_spark_is_refused_with_its_line(
    good: Path, package: str, version: str, words: str
) -> None:
    good.write_text(f"{good.read_text()}packages:\n- com.example:fine_2.13:1.0\n- {package}\n")
    line = len(good.read_text().splitlines())
    (problem,) = package_problems(load(good), version)
    assert words in problem.message
    assert (problem.line, problem.path) == (line, ("packages", 1))


def test_a_package_that_fits_is_named_with_its_jars(good: Path) -> None:
    good.write_text(f"{good.read_text()}packages: [kafka, 'com.example:fine_2.13:1.0']\n")
    (line,) = package_notes(load(good), "4.1.4")
    assert line.startswith("kafka for Spark 4.1.4 is org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3 org.")


def test_an_unknown_connector_is_refused_with_the_nearest(good: Path) -> None:
    good.write_text(f"{good.read_text()}packages: [kafak]\n")
    with pytest.raises(PipelineError, match=r"neither a connector nor of the form group:artifact:version; .*'kafka'"):
        load(good)


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("operator", STARTERS)
def test_every_starter_of_every_origin_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator: str, origin: str
) -> None:
    monkeypatch.setenv("LAKE", "lake")
    pipeline = load(init(operator, tmp_path, origin=origin, parts=1, rows=20)).pipeline
    assert pipeline.packages == ([] if origin == "files" else [origin])
    streams = pipeline.sources.keys() - set(pipeline.join.wiring.tables())
    for source in (pipeline.sources[name] for name in streams):
        if origin == "iceberg":
            assert str(source.table).startswith("lake.")
        else:
            assert source.format == ("parquet" if origin == "files" else origin)


def test_check_refuses_without_starting_spark(good: Path) -> None:
    good.write_text(f"{good.read_text()}packages: ['io.delta:delta-spark_3.5_2.13:3.3.0']\n")
    for command in (["check", "--no-spark"], ["check"], ["run"]):
        result = CliRunner().invoke(app, [*command, str(good)])
        assert result.exit_code == 2
        assert f"packages[0]: is for Spark 3.5, but this is Spark {pyspark.__version__}" in result.stderr


def test_the_command_lists_what_fits_the_running_spark() -> None:
    lines = CliRunner().invoke(app, ["connectors"]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(CONNECTORS)
    for name, line in zip(CONNECTORS, lines, strict=True):
        assert all(
            jar in line for jar in coordinates(name, pyspark.__version__) or ["is known. There is one for Spark"]
        )
    result = CliRunner().invoke(app, ["connectors", "kafak"])
    assert result.exit_code == 2
    assert "found 'kafak'. Known are kafka, avro, delta, iceberg." in result.stderr


def test_init_names_the_origins(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["init", "window", "--from", "kafak", "--into", str(tmp_path)])
    assert result.exit_code == 2
    assert "did you mean 'kafka'" in result.stderr
    assert not list(tmp_path.iterdir())


EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "pipelines").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_is_valid_and_names_the_connectors_it_uses(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE", "lake")
    pipeline = load(file).pipeline
    formats = {one.format for one in (*pipeline.sources.values(), pipeline.sink)} & CONNECTORS.keys()
    assert pipeline.name == file.stem
    assert formats <= set(pipeline.packages)


def test_what_was_fetched_before_needs_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake Java writes the answer once; the second request must not run it."""
    home = tmp_path / "home" / "bin"
    home.mkdir(parents=True)
    jar = tmp_path / "a.jar"
    jar.touch()
    (home / "java").write_text(f'#!/bin/sh\nshift $(($# - 1))\nprintf %s "{jar}" > "$1"\necho run >> {tmp_path}/runs\n')
    (home / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for _ in range(2):
        assert jars.fetch(["a:b:1"]) == [jar]
    assert (tmp_path / "runs").read_text() == "run\n"
    jar.unlink()  # what is gone is fetched again
    jars.fetch(["a:b:1"])
    assert (tmp_path / "runs").read_text() == "run\nrun\n"


def test_without_java_nothing_can_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(WatersmeetError, match="expected Java, to fetch jars, found no program"):
        jars.fetch(["a:b:1"])


def test_a_jar_that_cannot_be_had_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Ivy itself, and a repository that has nothing: no network is needed to find nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyHost=localhost -Dhttps.proxyPort=9")
    monkeypatch.setattr(jars, "PAUSES", ())
    said = r"found that com\.example:nothing:1 cannot be fetched \(.*Connection refused\)\. Check that"
    with pytest.raises(WatersmeetError, match=said):
        jars.fetch(["com.example:nothing:1"])


@pytest.mark.parametrize(
    ("output", "runs"), [("Server access error at url https://x (timed out)", 3), ("not found", 1)]
)
def test_what_may_pass_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, runs: int) -> None:
    """A fake Java fails twice and then answers; where the repository has no such file, it is asked once."""
    home, count, jar = tmp_path / "home" / "bin", tmp_path / "runs", tmp_path / "a.jar"
    home.mkdir(parents=True)
    (home / "java").write_text(
        f'#!/bin/sh\necho run >> {count}\nif [ $(wc -l < {count}) -lt 3 ]; then echo "{output}"; exit 1; fi\n'
        f'shift $(($# - 1))\nprintf %s "{jar}" > "$1"\n'
    )
    (home / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "PAUSES", (0.0, 0.0, 0.0))
    if runs == 1:
        with pytest.raises(WatersmeetError, match="not found"):
            jars.fetch(["a:b:1"])
    else:
        assert jars.fetch(["a:b:1"]) == [jar]
    assert count.read_text().count("run") == runs
