"""The code of the separate process: it isolates itself, then runs the model's program.

It uses only the standard library and relative imports: the process imports the folder as the
package `jail`, without turnwise, whose import would take longer than everything else.
"""

WORK_FOLDER = "/sandbox"
"""The working folder of a program, and the only one where it can write."""
