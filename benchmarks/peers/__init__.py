"""Clutch beside other agent libraries: the same jobs, the same model server, one run. `--help` has the options."""
