"""The async front: HTTP, SSE and WebSocket in, requests to workers out."""

__version__ = "0.1.0"
