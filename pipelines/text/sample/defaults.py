"""The sampling settings of requests that don't say."""

import logging
from collections.abc import Mapping

import msgspec
from msgspec import ValidationError

from models.files.catalog import EMBEDDED
from pipelines.messages.sampling import SamplingDefaults, SamplingOptions

log = logging.getLogger(__name__)


def sampling_defaults(
    configured: SamplingOptions, recommended: Mapping[str, object], source: str = ""
) -> SamplingDefaults:
    """Setting by setting: as configured, else as the model's authors recommend (generation_config.json), else as the
    catalogue of embedded models has it for `source`. What the authors recommend and no request may ask for is left
    out."""
    scheme, _, name = source.partition(":")
    catalogued = EMBEDDED[name].sampling if scheme == "embedded" and name in EMBEDDED else {}
    said = {**catalogued, **_allowed(recommended), **_said(configured)}
    return msgspec.convert(said, SamplingDefaults)


def _allowed(recommended: Mapping[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for field, value in recommended.items():
        try:
            found.update(_said(msgspec.convert({field: value}, SamplingOptions)))
        except ValidationError as error:
            log.warning("generation_config.json: %s is %.60r, which is left out: %s", field, value, error)
    return found


def _said(options: SamplingOptions) -> dict[str, object]:
    return {field: value for field, value in msgspec.structs.asdict(options).items() if value is not None}
