"""The transactions: generators that ask `core` what to do and yield SQL that both databases accept.

A transaction writes the rows of one session and inserts letters for others. The exceptions (`control`, `claims.claim`,
`workers.bury` and others that write several sessions) run alone. ARCHITECTURE.md lists which module writes which table.
"""
