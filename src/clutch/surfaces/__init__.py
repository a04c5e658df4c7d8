"""The doors of a gateway for other programs: where it is found, how it is asked, and what it answers over HTTP."""
