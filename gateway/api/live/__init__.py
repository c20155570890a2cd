"""Live speech: OpenAI's realtime protocol, and a plain one."""
