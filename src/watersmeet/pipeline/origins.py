"""Starters whose sources are topics or tables in place of files: `watersmeet init window --from kafka`.

The starter's own file says what the sources are called, what columns they have and which of them are tables; only its
section `sources` is written anew, with the packages that it needs.
"""

from __future__ import annotations

from typing import Any

from watersmeet.pipeline.document import Document

ORIGINS = ("files", "kafka", "delta", "iceberg")

_HEADERS = {
    "kafka": """\
# Topics with JSON values, of the same names as the sources. KAFKA is the address of the brokers.
packages: [kafka]                      # the connector that fits the running Spark
""",
    "delta": """\
# Delta tables, as new rows are appended to them.
packages: [delta]                      # the connector that fits the running Spark
""",
    "iceberg": """\
# Iceberg tables, as new rows are appended to them. LAKE is the folder of the catalog `lake`.
packages: [iceberg]                    # the connector that fits the running Spark

conf:                                  # the catalog; here tables are folders, others are rest, hive, glue, jdbc
  spark.sql.catalog.lake: org.apache.iceberg.spark.SparkCatalog
  spark.sql.catalog.lake.type: hadoop
  spark.sql.catalog.lake.warehouse: "${LAKE}"
""",
}
_ONE_FILE = {"delta": "maxFilesPerTrigger", "iceberg": "streaming-max-files-per-micro-batch"}


def sources_from(origin: str, text: str) -> str:
    """A starter's file with sources of another origin."""
    if origin == "files":
        return text
    before, _, rest = text.partition("sources:\n")
    _, _, after = rest.partition("\njoin:\n")
    data = Document(text, "starter").data
    tables = {data["join"].get("master")}
    blocks = [_source(origin, name, one, table=name in tables) for name, one in data["sources"].items()]
    return f"{before}{_HEADERS[origin]}\nsources:\n{''.join(blocks)}\njoin:\n{after}"


def _source(origin: str, name: str, source: dict[str, Any], *, table: bool) -> str:
    lines = [f"  {name}:"]
    if origin == "kafka" and table:
        lines += ["    format: parquet                    # a table is no topic", f"    path: {source['path']}"]
    elif origin == "kafka":
        columns = source.get("select") or ["*"]
        lines += [
            "    format: kafka",
            "    options:",
            '      kafka.bootstrap.servers: "${KAFKA:-localhost:9092}"',
            f"      subscribe: {name}",
            "      startingOffsets: earliest        # at the first start; later ones go on where the last one stopped",
            "      maxOffsetsPerTrigger: 100000     # rows of a micro-batch",
            "    with_columns:",
            f"      value: from_json(cast(value as string), '{source['schema']}')",
            f"    select: [{', '.join(f'value.{column}' for column in columns)}]",
        ]
    else:
        folder, _, _ = str(source["path"]).partition("-data/")
        if origin == "delta":
            lines += ["    format: delta", f"    path: {folder}-delta/{name}"]
        else:
            lines.append(f"    table: lake.{folder.replace('-', '_')}.{name}")
        if not table:
            lines.append(f"    options: {{{_ONE_FILE[origin]}: 1}}  # one file per micro-batch")
        if select := source.get("select"):
            lines.append(f"    select: [{', '.join(select)}]")
    return "\n".join(lines) + "\n"
