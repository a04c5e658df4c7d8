"""The demo: real work by a scripted model, watched and, if wished, killed again and again.

Two processes. The *worker* does the work like any program that embeds Clutch (`worker`). The one the person
started keeps it running, draws what the database says (`view`), kills it (`supervisor`) and in the end counts
(`report`), from the database and from what witnesses outside of the product wrote down (`witness`).
"""

from __future__ import annotations
