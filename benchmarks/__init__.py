"""What Clutch costs, as ratios measured in one run on one machine. `python -m benchmarks --help` has the options."""
