"""An admission of its own for tests, over replicas whose states they speak."""

import asyncio

from gateway.requests.admission import Admission, Lease, Slots
from tests.gateway.scripted import ScriptedBackend


class ScriptedAdmission:
    """An admission over scripted replicas."""

    def __init__(self, *slots: int, max_queue: int = 8, limit: int | None = None) -> None:
        self._open([ScriptedBackend(each) for each in slots], limit, max_queue=max_queue)

    @classmethod
    def over(cls, backends: list[ScriptedBackend], **options: int) -> "ScriptedAdmission":
        harness = cls.__new__(cls)
        harness._open(backends, None, **{"max_queue": 8, **options})
        return harness

    def _open(self, backends: list[ScriptedBackend], limit: int | None, **options: int) -> None:
        self.backends = backends
        self.slots = [Slots(backend, limit) for backend in backends]
        self.admission = Admission(self.slots, self._pick, **options)

    def _pick(self, large: bool) -> Slots | None:
        best = max(self.slots, key=lambda s: s.room(large=large))
        return best if best.room(large=large) > 0 else None

    def ask(
        self,
        units: int = 1,
        priority: str = "interactive",
        deadline: float | None = None,
        tenant: str = "",
        large: bool = False,
    ) -> asyncio.Task[Lease]:
        asked = self.admission.acquire(units, priority, deadline, tenant=tenant, large=large)  # type: ignore[arg-type]
        return asyncio.ensure_future(asked)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
