"""Replay against a server: any OpenAI-compatible endpoint, measured from the client's side."""
