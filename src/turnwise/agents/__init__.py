"""Agents that own their loop and call the model over HTTP, served with exact tokens."""
