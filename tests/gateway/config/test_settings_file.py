from pathlib import Path

from gateway.config.config_file import key_lines, read

TEXT = """\
title = "x" # 1

[server]
host = "a"
"quoted" = 1

[[models]]  # 7
name = "a"

[models.text]
n = 1

[[models]]
name = "b"
slo.ttft_ms = 5

[[models.extra]]
z = 1
"""


def test_every_key_has_its_line() -> None:
    assert key_lines(TEXT) == {
        "title": 1,
        "server": 3,
        "server.host": 4,
        "server.quoted": 5,
        "models": 7,
        "models[0]": 7,
        "models[0].name": 8,
        "models[0].text": 10,
        "models[0].text.n": 11,
        "models[1]": 13,
        "models[1].name": 14,
        "models[1].slo.ttft_ms": 15,
        "models[1].extra": 17,
        "models[1].extra[0]": 17,
        "models[1].extra[0].z": 18,
    }


def test_a_missing_key_is_where_its_table_is(tmp_path: Path) -> None:
    path = tmp_path / "g.toml"
    path.write_text(TEXT)
    file = read(path)
    assert file.where("models[0].text.n") == f"{path}:11"
    assert file.where("models[0].text.absent") == f"{path}:10"
    assert file.where("models[0].aliases[2]") == f"{path}:7"
    assert file.where("nothing.like.it") == str(path)
