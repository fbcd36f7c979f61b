"""Secrets that a test creates, and searches for in all output of the product."""

from __future__ import annotations

import base64
from itertools import count


class Planted:
    """Creates secrets that are easy to recognise. `check` fails if a text contains one of them, in any form."""

    def __init__(self) -> None:
        self._numbers = count(100)
        self._forms: dict[str, str] = {}
        """Form of a secret -> what the secret belongs to."""

    def secret(self, of: str) -> str:
        """A new secret, which belongs to `of`."""
        made = f"pl4nted{next(self._numbers)}secret"
        self.know(of, made.encode())
        return made

    def know(self, of: str, secret: bytes) -> None:
        """Also search for these bytes: as text, in hexadecimal, as Python prints bytes, and in base64 at any
        alignment."""
        forms = {secret.hex(), repr(secret)[2:-1]}
        for before in range(3):
            coded = base64.b64encode(b"\0" * before + secret).decode().rstrip("=")
            forms.add(coded[(0, 2, 3)[before] : len(coded) - 1])
        forms |= {form.replace("+", "-").replace("/", "_") for form in forms}
        self._forms.update(dict.fromkeys((form for form in forms if len(form) > 6), of))

    def check(self, where: str, shown: str) -> None:
        """Raises AssertionError if the text contains a secret."""
        found = sorted({f"{of}: {form}" for form, of in self._forms.items() if form in shown})
        assert not found, f"{where} shows {found}"

    def __len__(self) -> int:
        return len(self._forms)
