"""What runs inside the separate process: it locks itself in, then runs the model's code.

Only Python's standard library, and only relative imports: the process that runs this knows the
folder as the package `jail`, without turnwise, which would cost more than everything else.
"""

WORK_FOLDER = "/sandbox"
"""Where a program starts, and the only place where it can write."""
