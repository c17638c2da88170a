"""The vendor's kit: `port new` writes a driver's skeleton, `port check` says what works and what to do next.

bench.py     a device under test, and helpers to talk to it
stages/      the checks, in the order in which a port grows
worker.py    runs checks in a process of their own
check.py     starts workers, survives their deaths, keeps results
show.py      results for a terminal, as JSON, as HTML
new.py       the skeleton
"""
