"""Ways to work on a task other than our own loop. Each is a `ports.Runtime`."""
