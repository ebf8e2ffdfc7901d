"""Watersmeet joins streams on Apache Spark.

import watersmeet as wm
joined = wm.progressive_join(left, right, on="order_id", state_dir="state/orders")
"""

__version__ = "0.1.0"

from watersmeet.control import end_input
from watersmeet.spark.multiway import multiway_join
from watersmeet.spark.progressive import progressive_join
from watersmeet.spark.session import local_session

__all__ = ["end_input", "local_session", "multiway_join", "progressive_join"]
