"""Credentials of S3 that only boto3 reads: profiles of `~/.aws`, with keys, SSO, a role or a program."""

from __future__ import annotations

import logging
import os
import shlex
from configparser import Error, MissingSectionHeaderError, ParsingError, RawConfigParser
from datetime import timedelta
from pathlib import Path
from typing import Any

from sweeps.errors import InputError
from sweeps.storage.retries import Transient
from sweeps.text.installation import install_command

_FILES = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))
_CREDENTIALS = frozenset(
    {
        "aws_access_key_id",
        "credential_process",
        "login_session",
        "role_arn",
        "sso_account_id",
        "sso_session",
        "sso_start_url",
    }
)
# obstore asks again five minutes before they end; boto3 renews them when they have ten left.
_GOOD_FOR = timedelta(minutes=10)


class Unsigned(Exception):
    """A profile that gives no credentials: what is wrong, and what to do."""


def chosen() -> str:
    """Return the profile that the environment names, or `default` if it has credentials, or "".

    Raises:
        InputError: a file of profiles cannot be read.
    """
    if named := os.environ.get("AWS_PROFILE"):
        return named
    for variable, usual in _FILES:
        path = Path(os.environ.get(variable) or usual)
        parser = RawConfigParser(strict=False)
        try:
            parser.read(path.expanduser(), encoding="utf-8")
            keys = frozenset(key for name in parser if _is_default(name, usual) for key in parser[name])
        except (Error, OSError, RuntimeError, ValueError) as error:
            why = " ".join(str(error).split())
            if isinstance(error, ParsingError):  # its text quotes the line, which may be a secret
                line = error.lineno if isinstance(error, MissingSectionHeaderError) else error.errors[0][0]
                why = f"line {line} is neither a [section] nor NAME = VALUE in one"
            raise InputError(f"{path}: not a file of AWS profiles ({why})") from None
        if keys & _CREDENTIALS:
            return "default"
    return ""


def _is_default(section: str, file: str) -> bool:
    """Return whether a section is the default profile: in a config file perhaps as `profile default`."""
    return section == "default" or (file.endswith("config") and section.split() == ["profile", "default"])


def provider(profile: str) -> Any:
    """Return obstore's provider of the profile's credentials; see `renew` for what it raises."""
    try:
        import boto3
        import botocore.session
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        export = f"aws configure export-credentials --profile {shlex.quote(profile)} --format env"
        raise Unsigned(
            f"it takes boto3 to read: {install_command('aws')}, or put the keys into the environment: "
            f'`eval "$({export})"`'
        ) from None
    # It logs a traceback for each renewal that fails; what `renew` raises says it in one line.
    logging.getLogger("botocore.credentials").setLevel(logging.ERROR)
    try:
        session = botocore.session.Session(profile=profile)
        if "mfa_serial" in session.get_scoped_config():  # boto3 would ask on a terminal
            raise Unsigned(
                "it asks for a one-time code (mfa_serial), which no worker can give; take another profile"
            )
        if session.get_credentials() is None:
            raise Unsigned("it has no credentials; correct it in ~/.aws, or unset AWS_PROFILE")
        return Boto3CredentialProvider(boto3.Session(botocore_session=session), ttl=_GOOD_FOR)
    except Unsigned:
        raise
    except Exception as error:  # noqa: BLE001 - as in `renew`
        raise _meaning(error, profile) from None


def renew(found: Any, profile: str) -> None:
    """Renew the credentials of a provider if they are about to expire.

    Raises:
        Unsigned: they are refused, or have expired.
        Transient: nobody answered.
    """
    try:
        found.credentials.get_frozen_credentials()
    except Exception as error:  # noqa: BLE001 - a FileNotFoundError would say that an object is missing
        raise _meaning(error, profile) from None


def _meaning(error: Any, profile: str) -> Exception:
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

    said = " ".join(str(error).split())[:300]
    if not isinstance(error, BotoCoreError | ClientError):  # such as of a program that is not there
        said = f"{type(error).__name__}: {said}"
    status = error.response["ResponseMetadata"]["HTTPStatusCode"] if isinstance(error, ClientError) else 0
    if isinstance(error, HTTPClientError) or status == 429 or status >= 500:
        return Transient(f"AWS profile {profile}: {said}", in_doubt=False)
    name = type(error).__name__  # of classes that not every botocore has
    if name.startswith("Login") or "SSO" in name or "Token" in name:
        command = "aws login" if name.startswith("Login") else "aws sso login"
        return Unsigned(f"{said.rstrip('.')}; run `{command} --profile {shlex.quote(profile)}`")
    return Unsigned(f"{said}; correct it in ~/.aws, or what it signs in with")
