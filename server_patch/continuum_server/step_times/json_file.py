"""Read JSON files of this package and of its users."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


def read_file(path: Path, kind: type[T], refused: type[Exception]) -> T:
    """Return the content of a JSON file as ``kind``.

    Raises:
        Exception: the file cannot be read, or has another form. The error is of type ``refused`` and names the file.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise refused(f"{path}: cannot read: {error.strerror}") from error
    except msgspec.ValidationError as error:
        raise refused(f"{path}: {error}") from error
    except msgspec.DecodeError as error:
        raise refused(f"{path}: not JSON: {error}") from error
