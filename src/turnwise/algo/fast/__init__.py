"""Faster forms of the algorithms, equal to the plain ones up to rounding.

The modules outside this package have the formulas; each chooses its fast form in one line, and
`TURNWISE_PLAIN=1` disables all of them. `bench/plain.py` measures what they gain.
"""
