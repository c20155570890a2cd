"""Why a model can't be had. Both texts are written for the operator who named the model."""


class ModelLoadError(Exception):
    """The files are there, but this model can't be served from them."""


class SourceError(ModelLoadError):
    """The source names nothing that can be found, or nothing that may be fetched."""
