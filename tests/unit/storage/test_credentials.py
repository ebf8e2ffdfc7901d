"""Where endpoint, region and credentials are found, and that secrets are not shown."""

from __future__ import annotations

import json

from watersmeet.storage.credentials import Credentials, find_credentials
from watersmeet.storage.uri import located

LAKE = located("s3a://lake/state")


def found(
    uri: str = "s3a://lake/state",
    options: dict[str, object] | None = None,
    hadoop: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
) -> Credentials:
    return find_credentials(located(uri), options, (hadoop or {}).get, environment or {})


def test_the_order_of_the_places() -> None:
    hadoop = {"fs.s3a.access.key": "h", "fs.s3a.bucket.lake.secret.key": "b", "fs.s3a.secret.key": "h"}
    environment = {"AWS_ACCESS_KEY_ID": "e", "AWS_SECRET_ACCESS_KEY": "e", "AWS_REGION": "eu-west-1"}
    made = found(options={"region": "here"}, hadoop=hadoop, environment=environment)
    assert made.settings == {"access_key_id": "h", "secret_access_key": "b", "region": "here"}
    assert made.found == {
        "access_key_id": "fs.s3a.access.key",
        "secret_access_key": "fs.s3a.bucket.lake.secret.key",
        "region": "storage_options",
    }
    assert found(environment=environment).found["region"] == "AWS_REGION"


def test_whoever_has_credentials_has_all_of_them() -> None:
    """A token, a key or a role of somebody else is not added to those that were given."""
    given: dict[str, object] = {"access_key_id": "o", "secret_access_key": "o"}
    other = {"AWS_ACCESS_KEY_ID": "e", "AWS_SECRET_ACCESS_KEY": "e", "AWS_SESSION_TOKEN": "e", "AWS_REGION": "eu"}
    anonymous = {"fs.s3a.aws.credentials.provider": "AnonymousAWSCredentialsProvider", "fs.s3a.endpoint": "http://m:1"}
    made = found(options=given, hadoop=anonymous, environment=other)
    assert made.settings == {**given, "region": "eu", "endpoint": "http://m:1"}
    made = found(hadoop={"fs.s3a.access.key": "h", "fs.s3a.secret.key": "h"}, environment=other)
    assert made.settings == {"access_key_id": "h", "secret_access_key": "h", "region": "eu"}
    usual = {"fs.s3a.aws.credentials.provider": "x.TemporaryAWSCredentialsProvider,x.SimpleAWSCredentialsProvider"}
    assert found(hadoop=usual, environment=other).settings["session_token"] == "e"

    box, key = "abfss://box@acme.dfs.core.windows.net/a", {"AZURE_STORAGE_ACCOUNT_KEY": "e"}
    assert found(box, {"sas_key": "o"}, environment=key).settings == {"sas_key": "o", "account_name": "acme"}
    assert found(box, {"account_name": "o"}, environment=key).settings == {"account_key": "e", "account_name": "o"}
    key, file = {"service_account_key": "{}"}, {"GOOGLE_APPLICATION_CREDENTIALS": "file.json"}
    assert found("gs://lake/a", {**key}, environment=file).settings == key


def test_options_by_their_names_in_hadoop() -> None:
    made = found(options={"fs.s3a.access.key": "o", "aws_region": "r"}, hadoop={"fs.s3a.bucket.lake.access.key": "h"})
    assert made.settings == {"access_key_id": "o", "region": "r"}


def test_endpoints() -> None:
    def settings(**hadoop: str) -> dict[str, str]:
        return found(hadoop={f"fs.s3a.{name.replace('_', '.')}": value for name, value in hadoop.items()}).settings

    assert settings(endpoint="http://localhost:9000/") == {"endpoint": "http://localhost:9000", "region": "us-east-1"}
    assert settings(endpoint="minio:9000")["endpoint"] == "https://minio:9000"
    assert settings(endpoint="minio:9000", connection_ssl_enabled="false")["endpoint"] == "http://minio:9000"
    assert settings(endpoint="s3.eu-central-1.amazonaws.com") == {"region": "eu-central-1"}
    assert settings(endpoint="https://s3.amazonaws.com") == {}
    assert settings(path_style_access="true") == {"virtual_hosted_style_request": "false"}
    assert settings(path_style_access="false") == {}
    assert settings(aws_credentials_provider="x.AnonymousAWSCredentialsProvider") == {"skip_signature": "true"}


def test_encryption() -> None:
    hadoop = {"fs.s3a.encryption.algorithm": "SSE-KMS", "fs.s3a.encryption.key": "arn"}
    assert found(hadoop=hadoop).settings == {"server_side_encryption": "aws:kms", "sse_kms_key_id": "arn"}


def test_azure() -> None:
    account = "acme.dfs.core.windows.net"
    hadoop = {
        f"fs.azure.account.key.{account}": "k",
        "fs.azure.account.oauth2.client.endpoint": "https://login.microsoftonline.com/tenant-1/oauth2/token",
    }
    made = found(f"abfss://box@{account}/a", hadoop=hadoop)
    assert made.settings == {"account_key": "k", "tenant_id": "tenant-1", "account_name": "acme"}


def test_google() -> None:
    hadoop = {"fs.gs.auth.service.account.email": "me", "fs.gs.auth.service.account.private.key": "pem"}
    made = found("gs://lake/a", hadoop=hadoop, environment={"GOOGLE_APPLICATION_CREDENTIALS": "file.json"})
    assert json.loads(made.settings["service_account_key"])["private_key"] == "pem"
    assert "service_account" not in made.settings
    made = found("gs://lake/a", environment={"GOOGLE_APPLICATION_CREDENTIALS": "file.json"})
    assert made.settings == {"service_account": "file.json"}


def test_secrets_are_not_shown() -> None:
    made = found(options={"access_key_id": "canary-1", "secret_access_key": "canary-2", "region": "eu"})
    shown = " ".join([repr(made), *made.described()])
    assert "canary" not in shown
    assert "region = eu (storage_options)" in shown
    assert made.redact("AccessDenied for canary-1, canary-2") == "AccessDenied for ***, ***"
