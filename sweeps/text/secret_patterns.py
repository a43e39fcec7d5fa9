"""Patterns of secrets: names of variables, formats of access tokens, positions in a text.

The formats of tokens come from the rule sets of gitleaks and of detect-secrets. The latter is no dependency:
it takes a millisecond per line, reports hashes and commits as secrets by their entropy, and ignores the
environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from urllib.parse import quote, quote_plus

STARS = "***"

# ---- names

# Of a name in upper case with _ between its words. These mean a secret in any name …
_CERTAIN_NAME = re.compile(
    r"PASSWORD(?!LESS)|PASSWD|PASSPHRASE|PASSCODE|SECRET(?!AR)|CREDENTIAL"
    r"|(?:API|ACCESS|PRIVATE|AUTH|ACCOUNT|ENCRYPTION|MASTER|SIGNING)_?KEY"
    r"|(?<![A-Z])(?:ACCESS|API|AUTH|BEARER|BOT|CSRF|GITHUB|GITLAB|GH|HF|ID|NPM|REFRESH|SAS|SESSION|SLACK|WANDB)_?TOKEN"
    r"|CONNECTION_?STRING"
    r"|(?<![A-Z])(?:ADMIN|DATABASE|DB|FTP|HTTP|LDAP|MAIL|MONGO|MYSQL|PG|POSTGRES|PROXY|REDIS|ROOT|SMTP|SSH|USER)"
    r"_?(?:PASS|PWD)(?![A-Z])"
)
# … and these in the names of environment variables, which are in upper case.
_VARIABLE = re.compile(
    r"(?<![A-Z])(?:KEYS?|PAT|CREDS|DSN|COOKIES?|JWT|WEBHOOK)(?![A-Z])"
    r"|TOKEN(?![A-Z])|(?<!BY)(?<!COM)PASS(?![A-Z])|(?<!^)(?<!^OLD)PWD(?![A-Z])|(?<![A-Z])AUTH$"
)
# Models and tokenizers have keys and tokens of their own.
_MODEL_WORDS = re.compile(
    r"(?:ADDED|BOS|CLS|END|EOS|EOT|FIRST|IMAGE|LAST|MASK|MAX|MIN|NEW|NEXT|NUM|PAD|PER|PREFIX|SEP|SPECIAL|START|STOP|UNK)"
    r"_TOKEN|KEY_(?:VALUE|VALUES|STATES|SIZE|DIM)|PUBLIC_KEY|TOKEN_TYPE"
)
# Such a name means the location of a secret, a property of it, or an error about it.
_ABOUT_ONE = re.compile(
    r"_(?:FILE|PATH|DIR|FOLDER|SOCK|SOCKET|URI|ENDPOINT|HOST|PORT|TYPE|NAME|MODE|COUNT|LENGTH|LIMIT|SIZE)$"
    r"|(?<!WEBHOOK)_URL$|(?:ERROR|EXCEPTION|WARNING)S?$"
)
_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether a variable, key, flag or header of this name holds a secret.

    Words such as TOKEN and KEY count in upper case only, as environment variables are written: elsewhere
    they are words of language models (`eos_token`, `key`).
    """
    words = _WORD_BOUNDARY.sub("_", name).strip("_").upper()
    if _ABOUT_ONE.search(words):
        return False
    if _CERTAIN_NAME.search(words):
        return True
    return name.upper() == name and bool(_VARIABLE.search(_MODEL_WORDS.sub("", words)))


# ---- values

_PATH = re.compile(r"(?:~|\.{0,2}/|[A-Za-z]:\\)")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{40,}={0,2}")
_NO_SECRET = re.compile(
    r"(?i)(?:none|null|nil|true|false|yes|no|on|off|auto|disabled|enabled|optional|required|anonymous"
    r"|\*+|…:?)\Z"
)
_PLACEHOLDER = re.compile(r"(?:\$[\w({].*|<[^<>]*>|%\(?\w+\)?[sd]?)\Z")
_USERINFO = re.compile(r"(?<![\w+.-])[\w+.-]++://([^\s/'\"<>]*)@")
_LONG, _MIXED = 8, 6  # a shorter value would occur in harmless words


def may_be_shown(value: str) -> bool:
    """Return whether a text's value is no secret, whatever its name: empty, a switch, a placeholder, a path.

    A path or a URL is the location of a secret, which a user may need.
    """
    return bool(_PLACEHOLDER.match(value)) or _is_harmless(value)


def _is_harmless(value: str) -> bool:
    if not value or _NO_SECRET.match(value):
        return True
    if "://" in value:
        return not _USERINFO.search(value) and "hooks." not in value and "webhook" not in value
    return bool(_PATH.match(value)) and not _BASE64.fullmatch(value)


def secret_values(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the environment's secrets: values under secret names, and passwords in URLs under any name."""
    found = set()
    for name, value in environment.items():
        # What looks like a placeholder is the value itself here, such as `$ecretPassw0rd`.
        if is_secret_name(name) and not _is_harmless(value):
            found.add(value.strip())
        if "://" in value:
            found.update(match[1].partition(":")[2] for match in _USERINFO.finditer(value))
    return frozenset(value for value in found if _is_distinctive(value))


def _is_distinctive(value: str) -> bool:
    """Return whether it is too long, or too mixed, to occur in harmless text."""
    mixed = not value.isalpha() and not value.isdigit()
    return len(value) >= _LONG or (len(value) >= _MIXED and mixed)


@lru_cache(maxsize=1024)
def _spellings(secret: str) -> tuple[str, ...]:
    """Return the value as URLs, JSON, Python and one-line messages spell it."""
    as_json, as_python = json.dumps(secret)[1:-1], repr(secret)[1:-1]
    one_line = " ".join(secret.split())
    return tuple({secret, quote(secret, safe=""), quote_plus(secret), as_json, as_python, one_line})


# ---- formats, each with substrings of which one must occur before the pattern is tried: that is much faster

_Rule = tuple[tuple[str, ...], str, str]


def _rule(needles: str, pattern: str, replacement: str = STARS) -> _Rule:
    return tuple(needles.split("|")), pattern, replacement


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    """Return the pattern, compiled on first use: most commands need few of them."""
    return re.compile(pattern, re.DOTALL)


_NAMED = r"(?:key|token|secret|password|passwd|passphrase|pwd|signature|credential|sig)"
CERTAIN = (
    # https://user:password@host; a password may hold an @ of its own
    _rule("://", r"((?<![\w+.-])[\w+.-]++://)[^\s/'\"<>]*@", rf"\1{STARS}@"),
    # ?access_token=…, &X-Goog-Signature=…, ;SharedAccessKey=…, Pwd=…
    _rule("=", rf"(?i)([?&;][ ]?[\w.-]*{_NAMED}=)[^\s&;'\"<>#]+", rf"\1{STARS}"),
    _rule("Key=", r"(\b(?:Account|SharedAccess)Key=)[\w+/=-]+", rf"\1{STARS}"),  # Azure
    _rule(
        "PRIVATE KEY",
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    ),
    _rule("eyJ", r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]+\.[\w-]+"),  # JSON web tokens
    _rule("ya29.|AIza|GOCSPX-", r"\bya29\.[\w.-]+|\bAIza[\w-]{35}|\bGOCSPX-[\w-]{20,}"),  # Google
    _rule("AKIA|ASIA|ABIA|ACCA|A3T", r"\b(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[0-9A-Z]{16}\b"),  # AWS
    _rule("Q~", r"(?<![\w~.-])[\w~.]{3}\dQ~[\w~.-]{31,34}"),  # Azure AD
    _rule("gh|github_pat_", r"\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}"),
    _rule(
        "gl|GR1348941",
        r"\bgl(?:agent|cbt|dt|ffct|ft|imt|oas|pat|ptt|rt|rtr|soat|wt)-[\w.-]{20,}|\bGR1348941[\w-]{20,}",
    ),
    _rule(
        "hf_|api_org_|wandb_v|r8_|rpa_|nvapi-",
        r"\b(?:hf_|api_org_|wandb_v\d_|r8_|rpa_)\w{20,}|\bnvapi-[\w-]{20,}",
    ),
    _rule(
        "sk-|gsk_|pplx-|xai-", r"(?<![\w-])sk-(?=[\w-]*\d)[\w-]{20,}|\b(?:gsk_|pplx-|xai-)\w{20,}"
    ),  # OpenAI, Anthropic, …
    _rule(
        "k_live_|k_test_|k_prod_|whsec_", r"\b[rs]k_(?:live|test|prod)_\w{10,}|\bwhsec_[\w+/=]{16,}"
    ),  # Stripe
    _rule("xox|xapp-", r"\bxox[abeoprs](?:\.xox[bp])?-[\w-]{10,}|\bxapp-\d-[\w-]{10,}"),  # Slack
    _rule(
        "hooks.slack.com/|/api/webhooks/", r"(\bhooks\.slack\.com/\w+/|/api/webhooks/)[\w/-]+", rf"\1{STARS}"
    ),
    _rule("npm_|pypi-|dckr_", r"\bnpm_[A-Za-z0-9]{30,}|\bpypi-AgE[\w-]{20,}|\bdckr_[op]at_[\w-]{20,}"),
    _rule(
        "SG.|key-|-us", r"\bSG\.[\w-]{16,}\.[\w-]{16,}|\bkey-[0-9a-f]{32}\b|\b[0-9a-f]{32}-us\d{1,2}\b"
    ),  # mail
    _rule("SK", r"\bSK[0-9a-f]{32}\b"),  # Twilio
    _rule(":A", r"(?<![\w:])\d{5,16}:A[\w-]{34}(?![\w-])"),  # Telegram
    _rule("dapi|_v1_|hvs.|hvb.|hvr.", r"\bdapi[0-9a-f]{32}|\bdo[opr]_v1_[0-9a-f]{64}|\bhv[sbr]\.[\w-]{20,}"),
    _rule(
        "glsa_|glc_|shp|sq0|lin_api_|PMAK-|ATATT3|AGE-SECRET-KEY-|tskey-|.atlasv1.",
        r"\b(?:glsa_|glc_|shp(?:at|ca|pa|ss)_|sq0[a-z]{3}-|lin_api_|PMAK-|ATATT3|AGE-SECRET-KEY-1|tskey-)[\w=-]{20,}"
        r"|\b\w{14}\.atlasv1\.[\w-]{60,}",
    ),
)
"""Unique formats: an input that holds one can be refused."""

LIKELY = (
    _rule(
        "uthorization|UTHORIZATION",
        r"(?i)(\bauthorization['\"]?\s*[:=]\s*['\"]?)(?:\w+ +)?[\w.~+/=*-]+",
        rf"\1{STARS}",
    ),
    _rule("earer|EARER", r"(?i)(\bbearer\s+)[\w.~+/=-]{8,}", rf"\1{STARS}"),
    _rule("ookie:", r"(\b(?:[Ss]et-)?[Cc]ookie: *)[\w.-]+=[^\n'\"]+", rf"\1{STARS}"),
    _rule("curl", r"((?<!\S)(?:-u|-U|--user|--proxy-user)[ =]*+['\"]?+[^\s:'\"]++:)[^\s'\"]+", rf"\1{STARS}"),
    _rule("sshpass", r"(\bsshpass\s+-p\s*)\S+", rf"\1{STARS}"),
    _rule("machine", r"(\bmachine\s+\S+\s+login\s+\S+\s+password\s+)\S+", rf"\1{STARS}"),  # .netrc
)
"""Positions of secrets in messages. The words there may be harmless; redacting a message does not hurt."""


# ---- names with values, in a text

_HINTS = (
    "key",
    "token",
    "pass",
    "pwd",
    "secret",
    "cred",
    "auth",
    "dsn",
    "_pat",
    "cookie",
    "jwt",
    "webhook",
    "connection",
)
# `--secret NAME` is an option of `sweep launch`, which never takes a value.
_NAME = re.compile(
    r"(?<![\w.-])([A-Za-z_][\w.-]*+)(\\*['\"])?[ \t]*(?::=|=(?!=)|:(?![:/]))[ \t]*"
    r"|(?<![\w-])--(?!secret )([A-Za-z][\w-]*+)(?:=|[ \t]+(?!-)|['\"],[ \t]*(?!['\"]-))"
)
_VALUE = re.compile(r"(\\*\"|\\*')(?P<quoted>(?:(?!\1)[^\n])*+)|(?P<bare>[^\s'\",;&}]*[^\s'\",;&})\]])")
_ALONE = frozenset(
    ("KEY", "KEYS", "TOKEN", "PAT", "PASS", "CREDS", "DSN", "COOKIE", "COOKIES", "JWT", "WEBHOOK", "AUTH")
)
_FLAGS = frozenset(("key", "token", "pass", "pwd", "pat", "signature", "sig"))


def secret_spans(text: str, *, flags: bool = True) -> Iterator[tuple[int, int]]:
    """Yield the spans of values of secret names: of `PGPASSWORD=…`, `"api_key": "…"`, `--token …`.

    Args:
        flags: also options of command lines, and names in lower case.
    """
    lowered = text.lower()
    if not any(hint in lowered for hint in _HINTS):
        return
    end = 0
    for found in _NAME.finditer(text):
        name, flag = found[1], found[3]
        # A generic word in prose is no secret's name: `KEY: 3`, `PASS: test`.
        is_secret = _is_secret_flag(flag) if flag else is_secret_name(name) and name not in _ALONE
        if found.start() < end or not is_secret:
            continue
        if not flags and (flag or name.upper() != name):
            continue
        value = _VALUE.match(text, found.end())
        if value is None or (name and not _is_assignment(text, found, value)):
            continue
        start, end = value.span("quoted") if value["quoted"] is not None else value.span("bare")
        if not may_be_shown(text[start:end]):
            yield start, end


def _is_secret_flag(flag: str) -> bool:
    words = flag.lower().replace("-", "_").split("_")
    return is_secret_name(flag) or (words[-1] in _FLAGS and is_secret_name(flag.upper().replace("-", "_")))


def _is_assignment(text: str, name: re.Match[str], value: re.Match[str]) -> bool:
    """Return whether this is a name with its value, not a sentence with a colon."""
    if ":" not in name[0] or ":=" in name[0] or name[2] or value["quoted"] is not None:
        return True
    if name[1].upper() == name[1] or "-" in name[1]:  # a variable or a header
        return True
    before = text[text.rfind("\n", 0, name.start()) + 1 : name.start()]
    after = text[value.end() : value.end() + 1]
    return not before.strip(" \t-") and after in ("", "\n", "\r")  # a line of YAML


# ---- all of it


class Redactor:
    """Replacement of secrets by stars. Create one per report: the environment may change."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        spelled = {spelling for secret in secret_values(environment) for spelling in _spellings(secret)}
        self._secrets = sorted(spelled, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the text with stars for what looks like a secret, or is one of the environment's."""
        text = self.certain(text)
        text = mask_spans(text, secret_spans(text))
        return _with_rules(text, LIKELY)

    def certain(self, text: str) -> str:
        """Return the text with stars only for certain secrets."""
        for secret in self._secrets:
            if secret in text and len(secret) >= _LONG:
                text = text.replace(secret, STARS)
            elif secret in text:  # short ones may be a part of a harmless word
                text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", STARS, text)
        return _without_cut_key(_with_rules(text, CERTAIN))


_KEY_END = re.compile(r"(?<![\w+/=])[A-Za-z0-9+/=]*+-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----")
_KEY_LINE = re.compile(r"[A-Za-z0-9+/=]+\r?")


def _without_cut_key(text: str) -> str:
    """Return the text without the remains of a private key that begins before it, as in a log's tail."""
    if "PRIVATE KEY" not in text:
        return text
    kept: list[str] = []
    for line in text.split("\n"):
        shown = _KEY_END.sub(STARS, line)
        while shown != line and kept and _KEY_LINE.fullmatch(kept[-1]):
            kept.pop()
        kept.append(shown)
    return "\n".join(kept)


def _with_rules(text: str, rules: Iterable[_Rule]) -> str:
    for needles, pattern, replacement in rules:
        if any(needle in text for needle in needles):
            text = _pattern(pattern).sub(replacement, text)
    return text


def mask_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return the text with stars for these spans, which are in order."""
    parts, at = [], 0
    for start, end in spans:
        parts += [text[at:start], STARS]
        at = end
    return "".join((*parts, text[at:])) if parts else text
