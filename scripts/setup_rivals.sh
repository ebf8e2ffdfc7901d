#!/usr/bin/env bash
# Prepare the environment of the other systems that the benchmarks run: setup_rivals.sh VENV PYTHON JAVA_HOME
#
# PYTHON is that of the project's own environment, whose PySpark brings the tool that fetches jars (Ivy).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 python=$2 java=$3/bin/java

export PIP_DISABLE_PIP_VERSION_CHECK=1
"$python" -m venv --clear "$venv"
echo "setup: installing Flink, Pathway and DuckDB into $venv (about 700 MB the first time)"
"$venv/bin/python" -m pip install --quiet --requirement benchmarks/rivals.txt

flink=$(sed -n 's/^apache-flink-libraries==//p' benchmarks/rivals.txt)
jars=$("$python" -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent / "jars")')
"$java" -jar "$jars"/ivy-*.jar -cache "$venv/ivy" -notransitive -types jar bundle \
    -dependency org.apache.flink flink-sql-parquet "$flink" -retrieve "$venv/jars/[artifact]-[revision].[ext]" >"$venv/ivy.log" ||
    { cat "$venv/ivy.log" >&2; exit 1; }
echo "setup: done"
