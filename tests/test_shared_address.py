"""Addresses of shared stores as people write them: what is wrong is said, with what to do."""

from __future__ import annotations

import os

import pytest

from ortet.backends.buckets import open_bucket
from ortet.backends.object_storage.retry import BucketFailure, _refusal
from ortet.backends.object_storage.url import parse_bucket_url as bucket_address
from ortet.backends.postgres.pool import parse_database_url
from ortet.config.environment import store_path
from ortet.config.open_shared_store import is_shared, parse_shared_url
from ortet.config.server_checks import examine_database
from ortet.errors import Invalid
from ortet.server.session_pool.tenants import tenant_store

DATABASE = "postgresql://ann@db/team"
BUCKET = "bucket=s3%3A%2F%2Fb%2Fp"

_CLOUDS = ("AWS_", "GOOGLE_", "AZURE_")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"{DATABASE}&{BUCKET}", r"after \? and not after &"),
        (f"{DATABASE}?sslmode=require?{BUCKET}", "each further one after &"),
        (f"{DATABASE}?sslmode=require", "add &bucket="),
        (DATABASE, r"add \?bucket="),
        (f"{DATABASE}?{BUCKET}&durable=locall", "give remote or local"),
        (f"{DATABASE}?{BUCKET}&durable=", "give remote or local"),
        (f"{DATABASE}?{BUCKET}&connections=many", "give a number from 1 on"),
        (f"{DATABASE}?{BUCKET}&connections=0", "give a number from 1 on"),
        (f"{DATABASE}?{BUCKET}&connections=-3", "give a number from 1 on"),
        (f"{DATABASE}?{BUCKET}&schema=pg_team", "not begin with pg_"),
        (f"{DATABASE}?{BUCKET}&schema=", "at most 63 bytes"),
        (f"{DATABASE}?{BUCKET}&schema={'s' * 64}", "at most 63 bytes"),
        (f"postgresql://ann@::1:5432/team?{BUCKET}", r"in brackets, as \[::1\]:5432"),
        (f"postgresql://ann@db:543x/team?{BUCKET}", "HOST:PORT with a number"),
    ],
)
def test_an_invalid_shared_address_is_refused_with_advice(url: str, says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        parse_shared_url(url)
    assert caught.value.kind == "bad_url"
    assert "$." not in caught.value.message


@pytest.mark.parametrize(
    "place",
    ["db", "db:5432", "[::1]:5432", "[::1]", "one:1,two:2", "", "%2Ftmp%2Fpg", "ann%40x@db", "db:"],
)
def test_host_forms_accepted_by_the_driver_are_accepted(place: str) -> None:
    url = f"postgresql://{place}/team?{BUCKET}&connections=2&schema=My-Team"
    given = parse_shared_url(url)
    assert (given.connections, given.schema) == (2, "My-Team")
    parse_database_url(given.database, schema=given.schema, connections=2)


def test_a_tenant_of_a_database_on_this_host_is_in_it() -> None:
    url = tenant_store(f"postgresql:///team?{BUCKET}", "acme")
    assert is_shared(url)
    given = parse_shared_url(url)
    assert given.database == "postgresql:///team"
    assert (given.schema, given.bucket) == ("ortet.acme", "s3://b/p/tenants/acme")


def test_bucket_options_that_are_not_url_encoded_are_refused() -> None:
    given = parse_shared_url(f"{DATABASE}?bucket=s3://b/p?endpoint=https://s3.internal&region=eu-1")
    with pytest.raises(Invalid, match="percent-encoded") as caught:
        parse_database_url(given.database, schema="ortet", connections=1)
    assert '"region")' in caught.value.message
    assert "\n" not in caught.value.message
    line = examine_database(given)[0]
    assert "percent-encoded" in line.fix
    assert "pg_hba" not in line.fix


def test_a_misspelt_scheme_is_refused() -> None:
    with pytest.raises(Invalid, match="postgresql://HOST/DATABASE") as caught:
        store_path("postgrsql://ann:hunter2@db/team")
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize(
    ("url", "name"), [("s3://b", "AWS_"), ("gs://b", "GOOGLE_"), ("az://b", "AZURE_")]
)
def test_credentials_are_those_of_the_cloud_that_was_asked(url: str, name: str) -> None:
    failures = [
        BucketFailure(401, "NoCredentials", "none"),
        BucketFailure(403, "AccessDenied", "it said 403"),
    ]
    for failure in failures:
        said = _refusal(failure, bucket_address(url), "list it").message
        assert [found for found in _CLOUDS if found in said] == [name]


@pytest.mark.parametrize(
    ("url", "name", "set_"),
    [
        ("s3://b", "AWS_", {"AWS_CHECKSUM_ALGORITHM": "not one"}),
        ("gs://b", "GOOGLE_", {"GOOGLE_SERVICE_ACCOUNT": "/not/there"}),
        ("az://b", "AZURE_", {}),
        ("az://b?account=me", "AZURE_", {"AZURE_STORAGE_ACCOUNT_KEY": "not base64!"}),
    ],
)
def test_an_error_names_only_the_settings_of_the_requested_cloud(
    url: str, name: str, set_: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in [each for each in os.environ if each.startswith(_CLOUDS)]:
        monkeypatch.delenv(found)
    for variable, value in set_.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(Invalid) as caught:
        open_bucket(url)
    said = caught.value.message
    assert caught.value.kind == "bad_bucket"
    assert [found for found in _CLOUDS if found in said] == [name]
    with pytest.raises(Invalid, match=name):
        open_bucket(f"{url.partition('?')[0]}?access_key=hush")
