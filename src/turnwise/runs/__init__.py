"""The files of a run: its folder, metrics, episodes and checkpoints, and the doctor.

The trainer writes these files; the viewer and the commands read them. Reading metrics and episodes
needs no torch.
"""
