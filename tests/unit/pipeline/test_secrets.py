"""What is secret, where secrets may come from, and that no text keeps one."""

from pathlib import Path

import pytest

from watersmeet.pipeline.secrets import ConnectorOptions, Secrets, UnresolvedReferenceError, looks_secret


@pytest.mark.parametrize(
    "name",
    [
        "password", "kafka.ssl.keystore.password", "kafka.sasl.jaas.config", "fs.s3a.access.key", "fs.s3a.secret.key",
        "sfPassword", "accessKey", "apiKey", "API_KEY", "token", "oauth2.token.value", "client_credential",
        "passphrase", "spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net", "privateKey",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "passengers",
        "maxFilesPerTrigger",
        "keyspace",
        "startingOffsets",
        "path",
        "subscribe",
        "monkey",
        "turnkeySolution",
    ],
)
def test_names_of_other_options(name: str) -> None:
    assert not looks_secret(name)


def test_references(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("from-the-file\n")
    secrets = Secrets({"HOST": "db", "EMPTY": ""}, tmp_path)
    assert secrets.resolve("jdbc://${HOST}/${NAME:-orders}") == "jdbc://db/orders"
    assert secrets.resolve("${file:secret.txt}") == "from-the-file"
    assert secrets.resolve("$${HOST} costs 5$") == "${HOST} costs 5$"
    assert secrets.resolve("${EMPTY:-x}|") == "|"
    assert secrets.redact("it says from-the-file") == "it says ***"


@pytest.mark.parametrize(
    ("text", "words"),
    [("${NOWHERE}", "NOWHERE is not set"), ("${file:none.txt}", "cannot read"), ("${a b}", "neither")],
)
def test_references_that_lead_nowhere(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UnresolvedReferenceError, match=words):
        Secrets({}, tmp_path).resolve(text)


def test_texts_lose_their_secrets() -> None:
    secrets = Secrets({"DB_PASSWORD": "hunter22"})
    secrets.resolve("${DB_PASSWORD}")
    secrets.note_all("", {"options": {"token": "abcd-1234", "url": "jdbc:x://me:mypass@host/db", "n": 1}})
    text = 'failed: hunter22, "abcd-1234", mypass; url=https://u:pw@h/x [password=ab, sasl.jaas.config="x y"] token: q'
    cleaned = secrets.redact(text)
    for secret in ("hunter22", "abcd-1234", "mypass", "u:pw", "=ab", "x y", ": q"):
        assert secret not in cleaned
    assert "failed" in cleaned
    assert "@h/x" in cleaned


def test_short_values_do_not_blot_out_words() -> None:
    secrets = Secrets({})
    secrets.note("record.key", "id")
    assert secrets.redact("the id column") == "the id column"


def test_columns_keep_their_names() -> None:
    text = "found left.key: int, right.passengers: bigint"
    assert Secrets({}).redact(text) == text


def test_options_show_no_secret() -> None:
    options = ConnectorOptions({"token": "abcd-1234", "url": "http://u:p@h", "path": "x"})
    assert "abcd-1234" not in f"{options} {options!r}"
    assert options.shown() == {"token": "***", "url": "http://***@h", "path": "x"}
    assert options["token"] == "abcd-1234"


def test_a_container_of_azure_is_no_user(tmp_path: Path) -> None:
    secrets = Secrets(tmp_path)
    uri = "abfss://data@acme.dfs.core.windows.net/state"
    secrets.note_all("state_dir", [uri, "kafka://user:opensesame@host/x"])
    assert secrets.redact(f"{uri}: no data") == f"{uri}: no data"
    assert secrets.redact("kafka://user:opensesame@host, opensesame, abfss://me:hunter22@acme/x") == (
        "kafka://***@host, ***, abfss://***@acme/x"
    )
