"""Answers by DuckDB, in the environment of the rivals: reads a job from standard input, prints the answers as JSON.

The job is `{"tables": {name: glob of parquet files}, "queries": {name: SQL of one row}}`.
"""

from __future__ import annotations

import json
import sys

import duckdb

job = json.load(sys.stdin)
connection = duckdb.connect()
for name, files in job["tables"].items():
    connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{files}')")
answers = {}
for name, sql in job["queries"].items():
    cursor = connection.execute(sql)
    answers[name] = dict(zip([column[0] for column in cursor.description], map(int, cursor.fetchone()), strict=True))
json.dump({"version": duckdb.__version__, "answers": answers}, sys.stdout)
