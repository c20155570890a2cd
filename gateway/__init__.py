"""The async front: HTTP, SSE and WebSocket in, requests to workers out."""
