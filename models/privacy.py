"""What keeps libraries from reporting on whom they run for, and from writing into the home directory.

Nothing that is installed here may tell anybody that it runs, look up an address for that, or keep an identity for it.
So every process of this project calls `silence` before it imports them, and its children inherit the variables.
OpenVINO knows no variable for it: `models.embedder.openvino` keeps its reporter from being imported.
"""

from collections.abc import MutableMapping

from models.files.cache import cache_root

# Set whatever was set before: no value of these has a use here.
SILENCED = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime, in its release builds: an id and a database in the cache, a collector
    "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub, transformers, diffusers
    "DO_NOT_TRACK": "1",  # the same, and whatever else follows the convention
}
# Caches of libraries, beside ours: by themselves they would be in the home directory. Set where they are not.
CACHES = {
    "CUDA_CACHE_PATH": "cuda",  # kernels that the driver compiled
    "TRITON_CACHE_DIR": "triton",
}


def silence(environ: MutableMapping[str, str]) -> None:
    """Before the libraries are imported: they read these variables once."""
    environ.update(SILENCED)
    for name, folder in CACHES.items():
        environ.setdefault(name, str(cache_root() / folder))
