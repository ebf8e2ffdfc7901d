"""Runs a script on an older source tree, in which modules that the script imports had other names.

    PYTHONPATH=other/src python benchmarks/older_tree.py benchmarks/operators.py ARGUMENTS

A module that the tree lacks is replaced by the one that it has become since. Nothing happens on a tree of today.
"""

from __future__ import annotations

import runpy
import sys
from importlib import import_module
from importlib.util import find_spec

# The name of today -> that of release 0.1.0.
RENAMED = {
    "watersmeet.columns.arrow": "watersmeet.arrow",
    "watersmeet.engine.runtime": "watersmeet.runtime",
    "watersmeet.join.operator": "watersmeet.operator",
    "watersmeet.punctuated.promises.patterns": "watersmeet.punctuated.patterns",
}


def main() -> None:
    """Give the tree's modules the names of today, then run the script."""
    for today, then in RENAMED.items():
        if find_spec(then):
            sys.modules[today] = import_module(then)
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
