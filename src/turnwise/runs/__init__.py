"""What a run leaves behind: its folder, metrics, episodes and checkpoints, and what they say.

Nothing here trains, and reading a run's metrics and episodes needs no torch: the trainer writes
these files, the viewer and the commands read them.
"""
