"""Faster forms of the algorithms, equal to the plain ones up to rounding.

The modules outside this package say what is computed; each chooses its fast form in one line, and
`TURNWISE_PLAIN=1` leaves all of them out. `bench/algo.py` measures what they gain.
"""
