"""What VERL lacks on a machine without a GPU, put into its own registries."""
