"""Training on Ray, and by VERL's own trainers, with the same environment and reward."""
