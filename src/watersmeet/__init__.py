"""Watersmeet joins streams on Apache Spark.

import watersmeet as wm
joined = wm.progressive_join(left, right, on="order_id", state_dir="state/orders")
"""

from watersmeet.pipeline.jars import connector_settings
from watersmeet.punctuated.promises.constraints import Clustered, OneToMany, Ordered
from watersmeet.release import __version__
from watersmeet.semistream.explain import explain_semi_stream_join
from watersmeet.spark import patterns
from watersmeet.spark.control import end_input
from watersmeet.spark.failure import error
from watersmeet.spark.inspect import read_metrics, read_state
from watersmeet.spark.key_facts import PunctuationRows
from watersmeet.spark.master import prepare_master, refresh_master
from watersmeet.spark.multiway import multiway_join
from watersmeet.spark.progressive import progressive_join
from watersmeet.spark.punctuated import punctuated_join
from watersmeet.spark.read_rows import read_rows
from watersmeet.spark.semistream import semi_stream_join
from watersmeet.spark.session import local_session
from watersmeet.spark.window import explain_window_join, window_join

__all__ = [
    "Clustered",
    "OneToMany",
    "Ordered",
    "PunctuationRows",
    "__version__",
    "connector_settings",
    "end_input",
    "error",
    "explain_semi_stream_join",
    "explain_window_join",
    "local_session",
    "multiway_join",
    "patterns",
    "prepare_master",
    "progressive_join",
    "punctuated_join",
    "read_metrics",
    "read_rows",
    "read_state",
    "refresh_master",
    "semi_stream_join",
    "window_join",
]
