"""Beyond one process: Ray, and VERL's own trainers, with the same environment and reward."""
