"""Agents that own their loop and call the model over HTTP, served with exact tokens.

Nothing is imported here: the gateway needs the extra `agents`, and a session without a server
(`turnwise chat`) does not.
"""
