"""What is shown on a terminal of 80 columns."""

import io
from functools import cache
from pathlib import Path

from rich.console import Console

from gateway.app import create_app
from gateway.backends.base import State
from gateway.cli.columns import print_columns
from gateway.cli.console import ScreenAnnouncer, curl
from gateway.cli.reports import print_inventory
from gateway.config.inventory import ConfiguredModel, EmbeddedModel, Inventory
from gateway.config.settings import Settings, default_models, load_settings
from gateway.endpoint import Endpoint
from gateway.requests.fleet import Fleet
from metrics.registry import Registry
from pipelines.kinds import metrics_by_kind
from pipelines.messages.frames import Ready
from tests.gateway.idle_fleet import IdleFleet, make_settings


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system=None, width=80, _environ={})


@cache
def endpoints() -> list[Endpoint]:
    settings, registry = Settings(), Registry(metrics_by_kind())
    return [*create_app(settings, Fleet(settings, registry), registry).state.endpoints]


def shown(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def become(fleet: Fleet, number: int, state: State, reason: str | None = None) -> None:
    (replica,) = fleet.routes[number].replicas
    replica._ready = Ready(slots=24, load_seconds=12.34, details={"device": "cpu " * 40})  # type: ignore[attr-defined]
    replica._set_state(state, reason)  # type: ignore[attr-defined]


def test_the_embedded_models_fit_on_a_screen() -> None:
    settings = load_settings(None, {})
    assert len(settings.models) == len(default_models()) >= 1
    fleet = IdleFleet(settings, Registry(metrics_by_kind()))
    for number in range(len(settings.models)):
        become(fleet, number, State.READY)
    console = terminal()
    screen = ScreenAnnouncer(settings, console)
    screen.listening("http://127.0.0.1:8000")
    screen.settled(fleet, endpoints(), "http://127.0.0.1:8000")
    lines = shown(console)
    for model in settings.models:
        (line,) = (line for line in lines if line.startswith(f"{model.name}  "))
        assert line.split()[1:] == [model.kind, "ready", "24", "12.3"]
    command = curl(fleet, endpoints(), "http://127.0.0.1:8000", keyed=False)
    assert lines[-1] == command  # whole, so that it can be pasted
    assert max(map(len, lines[:-1])) <= 80
    assert len(lines) <= 30
    assert not set("│┃━─") & set("".join(lines))


def test_what_is_not_ready_says_why(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, key="k")
    fleet = IdleFleet(settings, Registry(metrics_by_kind()))
    become(fleet, 0, State.READY)
    become(fleet, 1, State.FAILED, "there is [no] such file " * 5)
    console = terminal()
    ScreenAnnouncer(settings, console).settled(fleet, endpoints(), "http://127.0.0.1:8000")
    text = "\n".join(shown(console))
    assert "org/second  text  failed      –        –" in text
    assert "org/second: there is [no] such file" in text
    assert "$GATEWAY_API_KEY" in text


def test_models_that_are_not_preloaded_are_not_said_to_be_loading(tmp_path: Path) -> None:
    console = terminal()
    config = tmp_path / "gateway.toml"
    config.write_text('[[models]]\nname = "lazy"\nkind = "text"\nsource = "/m"\npreload = false\n')
    settings = load_settings(config, {})
    screen = ScreenAnnouncer(settings, console)
    screen.listening("http://x")
    screen.settled(IdleFleet(settings, Registry(metrics_by_kind())), endpoints(), "http://x")
    text = "\n".join(shown(console))
    assert "Loading each model at its first use" in text
    assert "lazy   text  on demand      –        –" in text
    assert '"model": "lazy"' in text  # which it loads


def test_paths_are_whole_and_words_wrap() -> None:
    console = terminal()
    path = "/a/path/" + "that/is/long/" * 12 + "model.gguf"
    print_columns(console, [["ok", "model", f"text, 94 MiB, {path}"], ["note", "x" * 40, "some words " * 12]])
    lines = shown(console)
    assert any(line.strip() == path for line in lines)
    assert all(len(line) <= 80 for line in lines if path not in line)
    assert "x" * 40 in "\n".join(lines)
    piped = Console(file=io.StringIO(), width=80)
    print_columns(piped, [["ok", "model", f"text, 94 MiB, {path}"]])
    assert shown(piped) == [f"ok  model  text, 94 MiB, {path}"]


def test_the_inventory_fits_too() -> None:
    aliases = [f"alias-number-{number}" for number in range(9)]
    model = ConfiguredModel("m" * 20, aliases, "embedding", "embedded:" + "m" * 20, "auto", "/p", 2**27)
    lost = ConfiguredModel("lost", [], "text", "/models/lost", "auto", None, None, "/models/lost does not exist")
    console = terminal()
    embedded = EmbeddedModel("e", "text", "package", ["package"], True, False)
    print_inventory(Inventory([model, lost], [embedded]), console)
    lines = shown(console)
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "alias-number-8" in text
    assert "/models/lost does not exist" in text


def test_settings_are_not_needed_for_a_screen_without_models() -> None:
    console = terminal()
    ScreenAnnouncer(Settings(), console).settled(
        IdleFleet(Settings(), Registry(metrics_by_kind())), endpoints(), "http://x"
    )
    assert "Try it" not in "".join(shown(console))
