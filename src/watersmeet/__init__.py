"""Watersmeet joins streams on Apache Spark.

import watersmeet as wm
joined = wm.join(left, right, on="order_id", state_dir="state/orders")
print(wm.explain(joined))
"""

from watersmeet.pipeline.jars import connector_settings
from watersmeet.punctuated.promises.constraints import Clustered, OneToMany, Ordered
from watersmeet.release import __version__
from watersmeet.semistream.explain import explain_semi_stream_join
from watersmeet.spark import patterns
from watersmeet.spark.control import end_input
from watersmeet.spark.explaining import explain
from watersmeet.spark.failure import error
from watersmeet.spark.inputs import master
from watersmeet.spark.inspect import read_metrics, read_state
from watersmeet.spark.join import join
from watersmeet.spark.key_facts import PunctuationRows
from watersmeet.spark.master import prepare_master, refresh_master
from watersmeet.spark.multiway import multiway_join
from watersmeet.spark.progressive import progressive_join
from watersmeet.spark.punctuated import punctuated_join
from watersmeet.spark.read_rows import read_rows
from watersmeet.spark.semistream import semi_stream_join
from watersmeet.spark.session import local_session
from watersmeet.spark.window import explain_window_join, window_join
from watersmeet.view.embed import ui
from watersmeet.window.interval import between

__all__ = [
    "Clustered",
    "OneToMany",
    "Ordered",
    "PunctuationRows",
    "__version__",
    "between",
    "connector_settings",
    "end_input",
    "error",
    "explain",
    "explain_semi_stream_join",
    "explain_window_join",
    "join",
    "local_session",
    "master",
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
    "ui",
    "window_join",
]
