"""Redaction: texts without credentials, known by the name of their variable or by their form."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import quote

from rl_core.system.process_env import all_variables, is_secret_name
from rl_core.system.words import as_path

_BLOT: Final = "***"
_MIN_SECRET_LENGTH: Final = 8
"""Shorter values (`test`, `1`) are no secrets, and blotting them out would garble the text."""
_SORT_KEY: Final = re.compile(
    r"(?<!API)(?<!ACCESS)(?<!ACCOUNT)(?<!SECRET)(?<!SHARED)(?<!PRIVATE)_KEYS?$"
)
_URL_USER: Final = re.compile(
    r"(?<=://)(?:[^/\s@'\"]+@|[^/\s@'\":\[]*:(?!\d{1,5}/)(?:(?!://)[^\s'\"<>\\])*@)"
)
"""User and password; a password may hold a slash, and a port is no password."""
_FORMS: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (  # without the backslash before a quote: the text may be JSON
        # Signatures and tokens in the query of a URL: S3's, Google's, Azure's and others'.
        (
            r"(?i)([?&;](?:[^=&?;\s'\"]{0,40}(?:signature|credential|token|secret|password|"
            r"api[_-]?key)|sig|key|awsaccesskeyid)=)[^&;\s'\"\\]+",
            rf"\1{_BLOT}",
        ),
        (
            r"(?i)\b((?:account|shared(?:access)?)(?:key|signature)|password|pwd)=[^;&\s'\"\\]+",
            rf"\1={_BLOT}",
        ),
        (r"(?i)(\bauthorization['\"]?\s?[:=]\s?['\"]?(?:\w{1,20} )?)[^\s'\"\\]+", rf"\1{_BLOT}"),
        (r"(?i)\b(bearer )(?=[^\s'\"]{0,99}\d)[^\s'\"\\]{16,}", rf"\1{_BLOT}"),
        (r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA)[\w-]{16,}", _BLOT),
        (r"\beyJ[\w-]{8,500}\.eyJ[\w-]{8,4000}\.[\w-]*", _BLOT),
        (r"(?<=//hooks\.slack\.com/)[^\s'\"\\]+|(?<=/api/webhooks/)[^\s'\"\\]+", _BLOT),
        (
            r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^'\"]*?"
            r"(?:-----END [A-Z ]*-----|(?=\\?['\"])|\Z)",
            _BLOT,
        ),
    )
)
_OF_OS_ERRORS: Final = ("strerror", "filename", "filename2")
_ASSIGNED: Final = re.compile(r"\b([A-Z][A-Z0-9_]{2,60})=(?:[^\s'\"\\]{8,}|'[^'\"\\]{8,}')")


def is_secret(name: str, value: str) -> bool:
    """Returns whether a variable holds a secret, by its name; its value may show that it is none.

    SORT_KEY=response_tokens is a word, and GOOGLE_APPLICATION_CREDENTIALS names a file.
    """
    if len(value) < _MIN_SECRET_LENGTH or not is_secret_name(name):
        return False
    if re.fullmatch("[a-z_.-]+", value) and _SORT_KEY.search(name.upper()):
        return False
    with suppress(OSError, ValueError):
        return not (value.startswith(("/", "~", ".")) and as_path(value).exists())
    return True


def redact(text: str) -> str:
    """Returns the text without credentials.

    These are user and password of URLs, signatures in their queries, what has the form of a
    provider's token, and the values of environment variables whose name is a secret's.
    """
    for secret in _secrets():
        text = text.replace(secret, _BLOT)
    text = _URL_USER.sub(f"{_BLOT}@", text)
    for pattern, replacement in _FORMS:
        text = pattern.sub(replacement, text)
    return _ASSIGNED.sub(
        lambda match: f"{match[1]}={_BLOT}" if is_secret_name(match[1]) else match[0], text
    )


def redact_all(value: Any) -> Any:
    """Returns lists, tuples and mappings with every text in them redacted."""
    if isinstance(value, str):
        return redact(value)
    if type(value) is dict:
        return {key: redact_all(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(redact_all, value))
    return value


@contextmanager
def redacting_errors() -> Iterator[None]:
    """Takes credentials out of the errors of a block; all tasks have it as their decorator.

    Prefect keeps an error's text in its logs, as the state of the run, and as its result. An error
    that cannot be changed becomes a RuntimeError, or a ValueError if it was one.
    """
    try:
        yield
        return
    except BaseException as error:
        redact_error(error)
        if all(redact(text) == text for one in _all_of(error) for text in _said_by(one)):
            raise
        kind = ValueError if isinstance(error, ValueError) else RuntimeError
        text = redact(f"{type(error).__name__}: {error}")
    raise kind(text) from None


def redact_error(error: BaseException) -> None:
    """Takes credentials out of an error and out of those that led to it, in place."""
    for one in _all_of(error):
        with suppress(Exception):  # a foreign error's own code runs here
            one.args = redact_all(one.args)
            values = {**vars(one), **{name: getattr(one, name, None) for name in _OF_OS_ERRORS}}
            for name, value in values.items():
                if (shown := redact_all(value)) != value:
                    setattr(one, name, shown)


def _all_of(error: BaseException) -> list[BaseException]:
    """Returns an error, those that led to it, and those that it holds."""
    errors: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        one = waiting.pop()
        if isinstance(one, BaseException) and not any(one is each for each in errors):
            errors.append(one)
            held = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
            context = None if one.__suppress_context__ else one.__context__
            waiting += [one.__cause__, context, getattr(one, "cause", None), *held]
    return errors


def _said_by(error: BaseException) -> list[str]:
    texts = list(getattr(error, "__notes__", ()))
    with suppress(Exception):
        texts += [str(error), repr(error)]
    return texts


def _secrets() -> list[str]:
    """Returns the environment's secrets, longest first, also as JSON or a URL holds them."""
    values = set()
    for name, value in all_variables().items():
        passwords = [part[:-1].rpartition(":")[2] for part in _URL_USER.findall(value)]
        if is_secret(name, value):
            passwords.append(value.strip())
        values |= {each for each in passwords if len(each) >= _MIN_SECRET_LENGTH}
    forms = {
        form
        for value in values
        for form in (
            value,
            json.dumps(value)[1:-1],
            json.dumps(value, ensure_ascii=False)[1:-1],
            quote(value, safe=""),
            " ".join(value.split()),
        )
    }
    return sorted(forms, key=len, reverse=True)
