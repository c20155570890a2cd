"""Which failures a worker can't outlive."""

import sys


def device_is_lost(error: BaseException) -> bool:
    """Whether `error`, or what caused it, left the accelerator's context unusable.

    After any CUDA error but running out of memory, every later call in the process fails with the same error
    (CUDA Runtime API, "Error Handling": sticky errors), so only a new process helps. torch raises AcceleratorError for
    them (older builds: a RuntimeError that starts with "CUDA error"). torch is looked up, not imported: where no
    pipeline has imported it, it can't have raised.
    """
    torch = sys.modules.get("torch")
    lost: type[BaseException] | None = getattr(torch, "AcceleratorError", None)
    out_of_memory: type[BaseException] | None = getattr(torch, "OutOfMemoryError", None)
    seen: BaseException | None = error
    while seen is not None:
        if out_of_memory is not None and isinstance(seen, out_of_memory):
            return False
        if lost is not None and isinstance(seen, lost):
            return "out of memory" not in str(seen)
        if isinstance(seen, RuntimeError) and str(seen).startswith("CUDA error"):
            return "out of memory" not in str(seen)
        cause: BaseException | None = getattr(seen, "cause", None)
        seen = cause if isinstance(cause, BaseException) else seen.__cause__ or seen.__context__
    return False
