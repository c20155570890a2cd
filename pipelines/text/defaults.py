"""The sampling settings of requests that don't say."""

from collections.abc import Mapping

import msgspec
from msgspec import ValidationError

from models.catalog import EMBEDDED
from pipelines.base import ModelError
from pipelines.text.fields import SamplingDefaults, SamplingOptions


def sampling_defaults(
    configured: SamplingOptions, recommended: Mapping[str, object], source: str = ""
) -> SamplingDefaults:
    """Setting by setting: as configured, else as the model's authors recommend (generation_config.json), else as the
    catalogue of embedded models has it for `source`. Raises ModelError where the authors' is none."""
    scheme, _, name = source.partition(":")
    catalogued = EMBEDDED[name].sampling if scheme == "embedded" and name in EMBEDDED else {}
    named = {field: value for field, value in recommended.items() if value is not None}
    try:
        own = msgspec.convert({**catalogued, **named}, SamplingOptions)
    except ValidationError as error:
        raise ModelError(f"generation_config.json: {error}") from error
    said = {**_said(own), **_said(configured)}
    return msgspec.convert(said, SamplingDefaults)


def _said(options: SamplingOptions) -> dict[str, object]:
    return {field: value for field, value in msgspec.structs.asdict(options).items() if value is not None}
