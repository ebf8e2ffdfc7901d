"""Calibration: what the joins cost on this machine, for whoever chooses or explains one."""
