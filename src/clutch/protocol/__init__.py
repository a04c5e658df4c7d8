"""The transactions: generators that ask `core` what to do and speak SQL, the same on both databases.

Each writes one session's rows plus inserts of letters for others. The exceptions (kill, bury, claim, and
the other verbs of `control`) say so and run alone.
"""
