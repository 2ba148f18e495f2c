"""What deploy/ shows is what Ortet takes: command lines, addresses, a unit that systemd knows."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]

from ortet.backends.buckets import open_bucket
from ortet.backends.object_storage import url
from ortet.backends.valkey.address import parse_valkey_url
from ortet.cli.main import cli
from ortet.config.open_shared_store import parse_shared_url

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
UNIT = DEPLOY / "ortet.service"
CONDITIONS = ("service_started", "service_healthy", "service_completed_successfully")


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def servers() -> dict[str, Any]:
    found = compose()["services"].items()
    return {name: service for name, service in found if service["image"] == "ortet"}


def unit_command() -> list[str]:
    (line,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    return shlex.split(line)


def image_command() -> list[str]:
    (line,) = re.findall(r"^CMD (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    command: list[str] = yaml.safe_load(line)
    return command


def readme_commands() -> list[list[str]]:
    text = (DEPLOY / "README.md").read_text()
    return [
        shlex.split(found)
        for found in re.findall(r"\bortet (?:access|migrate|verify|doctor|stats)\b[^\n`]*", text)
    ]


def parsed(command: list[str]) -> dict[str, Any]:
    """The options as the real command line understands them; nothing is run."""
    program, name, *rest = command
    assert Path(program).name == "ortet"
    top = click.Context(cli, info_name="ortet")
    verb = cli.get_command(top, name)
    assert verb is not None, name
    if isinstance(verb, click.Group):
        return parsed_below(verb, rest, parent=top)
    return verb.make_context(name, rest, parent=top).params


def parsed_below(group: click.Group, words: list[str], *, parent: click.Context) -> dict[str, Any]:
    ctx = click.Context(group, parent=parent)
    verb = group.get_command(ctx, words[0])
    assert verb is not None, words
    return verb.make_context(words[0], words[1:], parent=ctx).params


def test_command_lines_are_understood() -> None:
    assert set(servers()) == {"one", "two"}
    commands = [service["command"] for service in servers().values()]
    commands += [unit_command(), image_command(), *readme_commands()]
    assert len(commands) >= 6
    for command in commands:
        parsed(command)
    with pytest.raises(click.UsageError):
        parsed(["ortet", "serve", "--hots", "0.0.0.0"])


def test_a_server_asks_for_tokens_where_others_reach_it() -> None:
    for command in (servers()["one"]["command"], unit_command(), image_command()):
        assert parsed(command)["no_auth"] is False
    believed = parsed(servers()["one"]["command"])["behind"]
    assert [ip_network(one) for one in believed] == [
        ip_network(one["subnet"]) for one in compose()["networks"]["default"]["ipam"]["config"]
    ]


def test_the_address_leads_to_the_other_services() -> None:
    services, environment = compose()["services"], servers()["one"]["environment"]
    address = parse_shared_url(environment["ORTET_URL"])
    assert re.fullmatch(r"postgresql://ortet@database/ortet", address.database)
    bucket, signal = (
        url.parse_bucket_url(address.bucket),
        parse_valkey_url(address.signal),
    )
    assert bucket.endpoint == "http://objects:8333"
    assert f"-name {bucket.bucket} " in services["prepare"]["command"][0]
    assert {"database", "objects", signal.host} <= set(services)
    assert services["signal"]["command"][1:3] == ["--save", ""]  # what was erased must not stay


def test_the_bucket_command_line_uses_known_options() -> None:
    """The image gives a GB to each volume, empty or not, and is killed before it has stopped."""
    command = compose()["services"]["objects"]["command"]
    program = Path(sys.executable).with_name("weed")
    told = subprocess.run([program, command[0], "-h"], capture_output=True, text=True, check=False)
    known = set(re.findall(r"^  -(\S+)", told.stdout + told.stderr, re.MULTILINE))
    assert len(known) > 50
    given = dict(one.removeprefix("-").partition("=")[::2] for one in command[1:])
    assert set(given) <= known
    assert given["master.volumePreallocate"] == "false"
    assert int(given["volume.preStopSeconds"]) < 10


def test_services_with_volumes_have_a_grace_period_of_60_seconds() -> None:
    for name, service in compose()["services"].items():
        if any(one.partition(":")[0] in compose()["volumes"] for one in service.get("volumes", [])):
            assert service["stop_grace_period"] == "60s", name


def test_valkey_answers_other_containers() -> None:
    command = compose()["services"]["signal"]["command"]
    assert command[command.index("--protected-mode") + 1] == "no"


def test_passwords_are_written_for_their_owner_alone(tmp_path: Path) -> None:
    (line,) = re.findall(r"^.*> \.env\)?$", (DEPLOY / "README.md").read_text(), re.MULTILINE)
    script = f"umask 022; openssl() {{ echo 0123; }}; {line}"
    subprocess.run(["sh", "-c", script], cwd=tmp_path, check=True)
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    named = re.findall(r"^(\w+)=\S+$", (tmp_path / ".env").read_text(), re.MULTILINE)
    assert set(named) == set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text()))


def test_the_guide_to_compose_names_services_that_are_there() -> None:
    services = set(compose()["services"])
    lines = re.findall(r"^docker compose (.*)$", (DEPLOY / "README.md").read_text(), re.MULTILINE)
    assert len(lines) >= 10
    for line in lines:
        verb, *words = shlex.split(line.partition(" > ")[0].partition(" < ")[0])
        if verb in ("exec", "run"):
            assert services & set(words), line
        for option in (one.partition("=") for one in words if one.startswith("--schema")):
            assert option[2] == "ortet"


def test_a_bucket_is_copied_out_and_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = runpy.run_path(str(DEPLOY / "copy_bucket.py"))["main"]
    first, second = (f"file://{tmp_path}/{one}" for one in ("store", "restored"))
    kept = {f"packs/{number:02}": os.urandom(100 + number) for number in range(20)}
    assert not open_bucket(first).put_all(kept)
    copy(first, f"file://{tmp_path}/backup")
    copy(first, f"file://{tmp_path}/backup")
    copy(f"file://{tmp_path}/backup", second)
    assert open_bucket(second).get_all([one.key for one in open_bucket(second).list()]) == kept
    assert capsys.readouterr().out.splitlines() == [
        "20 objects copied, 0 were there",
        "0 objects copied, 20 were there",
        "20 objects copied, 0 were there",
    ]


def test_the_compose_file_refers_only_to_existing_things() -> None:
    """As `docker compose config` would find, which needs no Docker here."""
    file = compose()
    services = file["services"]
    known = {"image", "build", "command", "entrypoint", "environment", "depends_on", "restart"}
    known |= {"stop_grace_period", "read_only", "tmpfs", "cap_drop", "security_opt", "volumes"}
    known |= {"ports", "healthcheck", "configs"}
    for name, service in services.items():
        assert set(service) <= known, name
        assert ":" in service["image"] or "build" in service, name  # a release, or ours
        waits = service.get("depends_on", [])
        assert set(waits) <= set(services) - {name}
        for other, how in waits.items() if isinstance(waits, dict) else ():
            assert how["condition"] in CONDITIONS
            assert ("healthcheck" in services[other]) == (how["condition"] == "service_healthy")
        for volume in service.get("volumes", []):
            source, target = volume.split(":")[:2]
            assert target.startswith("/")
            assert source in file["volumes"] or (DEPLOY / source).is_file()
        for config in service.get("configs", []):
            assert config["source"] in file["configs"]
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "others are let in by who puts TLS in front"


def test_the_dockerfile_copies_only_existing_files() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        *sources, _ = line.split()
        for source in sources:
            assert (DEPLOY.parent / source).exists(), source
            assert f"!{source}" in (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    (extras,) = re.findall(r"/src\[([\w,]+)\]", text)
    offered = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    assert set(extras.split(",")) <= set(offered["project"]["optional-dependencies"])
    assert offered["project"]["readme"] in text
    (release,) = re.findall(r"^FROM python:3\.(\d+)-slim$", text, re.MULTILINE)
    assert f">=3.{release}" in offered["project"]["requires-python"].replace(" ", "")


def test_the_health_path_of_the_proxy_exists() -> None:
    (path,) = re.findall(r"option httpchk GET (\S+)", (DEPLOY / "haproxy.cfg").read_text())
    assert path in (DEPLOY.parent / "src/ortet/server/observability/health.py").read_text()
    port = parsed(servers()["one"]["command"])["port"]
    assert f"'http://127.0.0.1:{port}{path}'" in servers()["one"]["healthcheck"]["test"][-1]


def test_the_proxy_knows_each_server() -> None:
    text = (DEPLOY / "haproxy.cfg").read_text()
    port = parsed(servers()["one"]["command"])["port"]
    found = re.findall(r"^\s+server (\w+) (\w+):(\d+)$", text, re.MULTILINE)
    assert found == [(name, name, str(port)) for name in servers()]


def test_the_proxy_leaves_a_session_at_its_server() -> None:
    text = (DEPLOY / "haproxy.cfg").read_text()
    (number,) = re.findall(r"set-var\(txn.session\) path,field\((\d),/\)", text)
    assert ["", "sessions", "{session}", "turns"][int(number) - 1] == "{session}"
    assert "balance hash var(txn.session)\n" in text


def test_servers_have_disks_of_their_own() -> None:
    named = [service["volumes"][0].partition(":")[0] for service in servers().values()]
    assert len(set(named)) == len(named)
    assert set(named) <= set(compose()["volumes"])


def test_no_password_is_written_down() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    for line in re.findall(r"^.*(?:PASSWORD|SECRET)[A-Z_]*: .*$", text, re.MULTILINE):
        assert re.search(r": \$\{[A-Z_]+:\?set it in .env\}$", line), line


def test_systemd_analyze_accepts_the_unit(tmp_path: Path) -> None:
    for line in UNIT.read_text().splitlines():
        assert re.fullmatch(r"#.*|\[\w+\]|[A-Z]\w+=.*|", line), line
    if shutil.which("systemd-analyze") is None:  # a host without it has no use for the unit either
        return
    program = Path(sys.executable).with_name("ortet")
    copy = tmp_path / "ortet.service"
    copy.write_text(UNIT.read_text().replace(unit_command()[0], str(program)))
    argv = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "ortet.service" not in done.stderr, done.stderr  # it may lack what it knows of others
