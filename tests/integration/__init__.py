"""The whole system over real sockets: real worker processes, and the real model where its weights are installed."""
