"""Servers that tests start do not outlive them, however the tests end."""

import ctypes
import signal
import sys

_SET_DEATH_SIGNAL = 1  # of Linux's prctl


def end_with_parent() -> None:
    """For `preexec_fn`: the process is killed when the one that started it is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
