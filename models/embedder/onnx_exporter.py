"""The main of the export process, started as `python -m models.embedder.onnx_exporter`."""

import json
import os
import sys
from pathlib import Path

from models.embedder.embedder_config import read_embedder
from models.embedder.onnx_export import REFUSED, ExportOptions, cache_entry
from models.errors import ModelLoadError
from models.files.cache import build_once
from models.privacy import silence


def main() -> None:
    silence(os.environ)
    argument = json.loads(sys.argv[1])
    path, options = Path(argument["path"]), ExportOptions(**argument["options"])

    def build(folder: Path) -> None:
        from models.embedder.onnx_build import build_export  # seconds: not for one that waits for another's export

        build_export(path, options, folder, argument["threads"])

    try:
        read_embedder(path)
        build_once(cache_entry(path, options), build)
    except ModelLoadError as error:
        print(error)
        sys.exit(REFUSED)


if __name__ == "__main__":
    main()
