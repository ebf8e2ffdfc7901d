"""`python -m watersmeet`, and what `spark-submit` is given."""

import os
import sys

if __name__ == "__main__":
    # Run as a file (spark-submit does), Python puts this folder first on the path, where `plan` or `testing` would
    # stand before other packages of that name.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]

    from watersmeet.cli import app

    app(prog_name="watersmeet")
