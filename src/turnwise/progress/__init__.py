"""How a run is shown while it goes: in a terminal, in a notebook, as lines, as JSON.

Nothing here imports torch, so the command line can use it at once.
"""
