"""The names that hand-written loops use: other shapes of what the packages above do."""
