"""How to reach a store: endpoint, region and credentials, from wherever a user has put them.

In this order: what was given as `storage_options`, Spark's Hadoop settings (`fs.s3a.*`, `fs.gs.*`, `fs.azure.*`, with
those of a single bucket or account first), the environment. What says who we are (keys, tokens, accounts) is taken from
the first of them that has any of it, and from that one alone: the token of one key is no use with another. Where none
says anything, the client asks the machine (an instance role, a workload identity).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from watersmeet.storage.uri import Location

Lookup = Callable[[str], str | None]  # the value of a Hadoop setting, if it is set
MASK = "***"

# The client's name of a setting, its names in Hadoop, and in the environment.
_S3 = {
    "access_key_id": (["access.key"], ["AWS_ACCESS_KEY_ID"]),
    "secret_access_key": (["secret.key"], ["AWS_SECRET_ACCESS_KEY"]),
    "session_token": (["session.token"], ["AWS_SESSION_TOKEN"]),
    "endpoint": (["endpoint"], ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]),
    "region": (["endpoint.region"], ["AWS_REGION", "AWS_DEFAULT_REGION"]),
    "server_side_encryption": (["encryption.algorithm", "server-side-encryption-algorithm"], []),
    "sse_kms_key_id": (["encryption.key", "server-side-encryption.key"], []),
    "path_style": (["path.style.access"], []),
    "ssl": (["connection.ssl.enabled"], []),
    "provider": (["aws.credentials.provider"], []),
}
_GS = {
    "service_account": (
        ["fs.gs.auth.service.account.json.keyfile", "google.cloud.auth.service.account.json.keyfile"],
        ["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"],
    ),
    "email": (["fs.gs.auth.service.account.email"], []),
    "private_key": (["fs.gs.auth.service.account.private.key"], []),
    "private_key_id": (["fs.gs.auth.service.account.private.key.id"], []),
    "base_url": (["fs.gs.storage.root.url"], ["GOOGLE_BASE_URL"]),
}
_AZURE = {
    "account_key": (["fs.azure.account.key"], ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"]),
    "sas_key": (["fs.azure.sas.fixed.token"], ["AZURE_STORAGE_SAS_TOKEN"]),
    "client_id": (["fs.azure.account.oauth2.client.id"], ["AZURE_CLIENT_ID"]),
    "client_secret": (["fs.azure.account.oauth2.client.secret"], ["AZURE_CLIENT_SECRET"]),
    "tenant_id": (["fs.azure.account.oauth2.client.endpoint"], ["AZURE_TENANT_ID"]),
    "endpoint": ([], ["AZURE_STORAGE_ENDPOINT"]),
}
_SECRETS = re.compile(r"key|token|secret|credential|password|provider", re.IGNORECASE)
# Settings that say who we are. They belong together.
_IDENTITY = re.compile(
    "access_key|account_key|master_key|private_key|sas_|secret|token|provider|signature|service_account|credentials|email"
    "|client_|tenant|msi_|azure_cli"
)
_AMAZON = re.compile(r"(?:https?://)?s3[.-](?:dualstack\.)?(?:([a-z0-9-]+)\.)?amazonaws\.com/?$")


@dataclass(frozen=True)
class Credentials:
    """Settings of a client, and where each was found. What they are is never shown."""

    settings: dict[str, str] = field(default_factory=dict)
    found: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Credentials({', '.join(self.described()) or 'none'})"

    def described(self) -> list[str]:
        """What was found where, for people: secrets are only named.

        >>> Credentials({"region": "eu", "secret_access_key": "x"}, {"region": "AWS_REGION"}).described()
        ['region = eu (AWS_REGION)', 'secret_access_key = *** (derived)']
        """
        return [
            f"{name} = {MASK if _SECRETS.search(name) else value} ({self.found.get(name, 'derived')})"
            for name, value in sorted(self.settings.items())
        ]

    def redact(self, text: str) -> str:
        """A text without any of the secret values."""
        for name, value in self.settings.items():
            if _SECRETS.search(name) and len(value) >= 4:
                text = text.replace(value, MASK)
        return text


def find_credentials(
    location: Location,
    options: Mapping[str, object] | None = None,
    hadoop: Lookup | None = None,
    environment: Mapping[str, str] | None = None,
) -> Credentials:
    """The settings for a place."""
    given = {str(name): _text(value) for name, value in (options or {}).items()}
    environment = os.environ if environment is None else environment
    in_options: dict[str, tuple[str, str]] = {}  # by name: a value, and where it was found
    in_hadoop: dict[str, tuple[str, str]] = {}
    in_environment: dict[str, tuple[str, str]] = {}
    for name, (keys, variables) in {"s3": _S3, "gs": _GS, "azure": _AZURE, "hdfs": {}}[location.store].items():
        for key in (key for short in keys for key in _hadoop_names(location, short)):
            if value := given.pop(key, None):
                in_options.setdefault(name, (value, f"storage_options, {key}"))
            if hadoop is not None and (value := hadoop(key)):
                in_hadoop.setdefault(name, (value, key))
        for variable in variables:
            if value := environment.get(variable):
                in_environment.setdefault(name, (value, variable))
    for name, value in given.items():
        short = name.lower().removeprefix("aws_" if location.store == "s3" else "azure_storage_")
        in_options[short] = (value, "storage_options")
    values: dict[str, str] = {}
    found: dict[str, str] = {}
    for place in (in_options, in_hadoop, in_environment):
        if "Anonymous" not in place.get("provider", ("", ""))[0]:
            place.pop("provider", None)  # Hadoop's own list of where it looks says nothing of us
        known = any(map(_IDENTITY.search, values))
        for name, (value, where) in place.items():
            if name not in values and not (known and _IDENTITY.search(name)):
                values[name], found[name] = value, where
    settings = {"s3": _s3_settings, "gs": _gs_settings, "azure": _azure_settings, "hdfs": _as_given}[location.store]
    made = settings(values)
    if location.store == "azure":
        made.setdefault("account_name", location.account.partition(".")[0])
        found.setdefault("account_name", "the URI")
    return Credentials(made, {name: found[name] for name in made if name in found})


def _hadoop_names(location: Location, name: str) -> list[str]:
    """The names of a setting in Hadoop, the one that is for this bucket or account alone first."""
    if location.store == "s3":
        return [f"fs.s3a.bucket.{location.bucket}.{name}", f"fs.s3a.{name}"]
    if location.store == "azure":
        return [f"{name}.{location.account}", f"{name}.{location.bucket}.{location.account}", name]
    return [name]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_given(values: dict[str, str]) -> dict[str, str]:
    return values


def _s3_settings(values: dict[str, str]) -> dict[str, str]:
    path_style, ssl, provider = (values.pop(name, "") for name in ("path_style", "ssl", "provider"))
    endpoint = values.pop("endpoint", "")
    if amazon := _AMAZON.match(endpoint):
        # The client knows Amazon's own endpoints by their region.
        if amazon[1]:
            values.setdefault("region", amazon[1])
        endpoint = ""
    if endpoint:
        if "://" not in endpoint:
            endpoint = f"{'http' if ssl.lower() == 'false' else 'https'}://{endpoint}"
        values["endpoint"] = endpoint.rstrip("/")
        values.setdefault("region", "us-east-1")
    if path_style.lower() == "true":  # Hadoop's default says no more than that nobody has asked for it
        values.setdefault("virtual_hosted_style_request", "false")
    if provider:
        values["skip_signature"] = "true"
    kinds = {"SSE-S3": "AES256", "SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse"}
    if (kind := values.get("server_side_encryption")) in kinds:
        values["server_side_encryption"] = kinds[kind]
    return values


def _gs_settings(values: dict[str, str]) -> dict[str, str]:
    email, key, number = (values.pop(name, "") for name in ("email", "private_key", "private_key_id"))
    if email and key:
        account = {"client_email": email, "private_key": key, "private_key_id": number}
        values["service_account_key"] = json.dumps(account)
        values.pop("service_account", None)
    return values


def _azure_settings(values: dict[str, str]) -> dict[str, str]:
    if "://" in values.get("tenant_id", ""):  # Hadoop has the address of the token: https://host/<tenant>/oauth2/token
        values["tenant_id"] = values["tenant_id"].split("/")[3]
    return values
