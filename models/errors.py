"""Why a model can't be had. All texts are written for the operator who named the model."""

UPSTREAM = "serve it with another server (vLLM, SGLang, llama.cpp, …) and add that as an upstream model"


class ModelLoadError(Exception):
    """The files are there, but this model can't be served from them."""


class SourceError(ModelLoadError):
    """The source names nothing that can be found, or nothing that may be fetched."""


def require(condition: bool, architecture: str, what: str) -> None:
    """Raises ModelLoadError, naming the architecture, what of it is not supported and the alternative."""
    if not condition:
        raise ModelLoadError(f"{architecture} with {what} is not supported; {UPSTREAM}")
