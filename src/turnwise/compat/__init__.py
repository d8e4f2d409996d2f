"""The names that hand-written loops use: other shapes of what the packages above do.

`turnwise.episode`, `inference`, `learner`, `reward` and `algo` have these names too, and import
them when they are first used.
"""
