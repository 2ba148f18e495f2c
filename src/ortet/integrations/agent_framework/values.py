"""Converts checkpoint values to plain data and back, without pickle.

Only allowed types are created again, from their fields.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from agent_framework._serialization import SerializationMixin
from agent_framework._workflows import _checkpoint_encoding as framework
from agent_framework.exceptions import WorkflowCheckpointException
from pydantic import BaseModel

from ortet.errors import Invalid, OrtetError, Refused

TYPE_KEY = "!"
_FRAMEWORK_MODULES = ("agent_framework.", "agent_framework_orchestrations.", "openai.types.")
_INT64_LIMIT = 1 << 63
_MAX_DEPTH = 48

_SCALAR_CODECS: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: ("bytes", lambda v: base64.b64encode(v).decode(), base64.b64decode),
    bytearray: (
        "bytearray",
        lambda v: base64.b64encode(v).decode(),
        lambda v: bytearray(base64.b64decode(v)),
    ),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    timedelta: (
        "timedelta",
        lambda v: [v.days, v.seconds, v.microseconds],
        lambda v: timedelta(v[0], v[1], v[2]),
    ),
    UUID: ("uuid", str, UUID),
    Decimal: ("decimal", str, Decimal),
    complex: ("complex", lambda v: [v.real, v.imag], lambda v: complex(v[0], v[1])),
}
_COLLECTION_NAMES: dict[type, str] = {
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    deque: "deque",
}
_MAPPING_NAMES: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
_FACTORIES: dict[str, type] = {t.__name__: t for t in (list, dict, set, int, str, float)}


class CheckpointValueCodec:
    """Encodes and decodes checkpoint values.

    Args:
        allowed: types of the program as "module:qualname", in addition to the framework's types and
            those passed to `register_checkpoint_type`.
        allow_pickle: let the framework pickle values that cannot be encoded otherwise. They are
            read by its restricted unpickler.
    """

    def __init__(self, allowed: Collection[str] = (), *, allow_pickle: bool = False) -> None:
        self._allowed = frozenset(allowed)
        self._allow_pickle = allow_pickle

    # Encoding.

    def encode(self, value: Any, path: str = "", depth: int = 0) -> Any:
        """Return the value as plain data.

        Raises:
            Invalid: "not_storable" with the path of a value that cannot be encoded.
        """
        if depth > _MAX_DEPTH:
            raise Invalid(
                "not_storable", f"{path}: nested more than {_MAX_DEPTH} deep, or in a ring"
            )
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            return (
                value
                if -_INT64_LIMIT <= value < _INT64_LIMIT
                else {TYPE_KEY: "int", "v": str(value)}
            )
        if kind is float:
            return value if math.isfinite(value) else {TYPE_KEY: "float", "v": repr(value)}
        if kind is list:
            return [self.encode(v, f"{path}[{n}]", depth + 1) for n, v in enumerate(value)]
        if kind in _MAPPING_NAMES or kind is defaultdict:
            return self._map(value, path, depth)
        if kind in _SCALAR_CODECS:
            name, out, _ = _SCALAR_CODECS[kind]
            return {TYPE_KEY: name, "v": out(value)}
        if kind in _COLLECTION_NAMES:
            several = [self.encode(v, f"{path}[{n}]", depth + 1) for n, v in enumerate(value)]
            return {TYPE_KEY: _COLLECTION_NAMES[kind], "v": several}
        try:
            return self._object(value, path, depth)
        except Invalid:
            if not self._allow_pickle:
                raise
            return self._pickle(value, path)

    def _map(self, value: Mapping[Any, Any], path: str, depth: int) -> Any:
        plain = type(value) is dict and all(type(key) is str for key in value)
        if plain and TYPE_KEY not in value:
            return {k: self.encode(v, _child_path(path, k), depth + 1) for k, v in value.items()}
        pairs = [
            [
                self.encode(k, f"{path} key", depth + 1),
                self.encode(v, _child_path(path, k), depth + 1),
            ]
            for k, v in value.items()
        ]
        if isinstance(value, defaultdict):
            factory = getattr(value.default_factory, "__name__", "")
            if value.default_factory not in (None, _FACTORIES.get(factory)):
                raise self._not_storable_error(value, path)
            return {TYPE_KEY: "default", "t": factory, "v": pairs}
        return {TYPE_KEY: _MAPPING_NAMES[type(value)], "v": pairs}

    def _object(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, type):
            return {TYPE_KEY: "type", "t": self._check(value, path)}
        kind = type(value)
        key = self._check(kind, path)
        if isinstance(value, Enum):
            return {TYPE_KEY: "enum", "t": key, "v": value.name}
        tells = isinstance(value, SerializationMixin) or hasattr(kind, "from_dict")
        if tells and not dataclasses.is_dataclass(value):
            return {TYPE_KEY: "told", "t": key, "v": self.encode(value.to_dict(), path, depth + 1)}
        if isinstance(value, tuple):
            return {TYPE_KEY: "named", "t": key, "v": self.encode(list(value), path, depth + 1)}
        fields = _fields_of(value)
        if fields is None:
            raise self._not_storable_error(value, path)
        return {TYPE_KEY: "object", "t": key, "v": self.encode(fields, path, depth + 1)}

    def _check(self, kind: type, path: str = "") -> str:
        key = f"{kind.__module__}:{kind.__qualname__}"
        if self._is_allowed(key):
            return key
        raise Invalid(
            "not_storable",
            f"{path or 'a value'}: {key} is not stored unless you say so: give "
            f"allowed_checkpoint_types=[{key!r}], or call register_checkpoint_type",
            key=path,
        )

    def _is_allowed(self, key: str) -> bool:
        known = key in self._allowed or key in framework._REGISTERED_CHECKPOINT_TYPE_KEYS
        return known or key.startswith(_FRAMEWORK_MODULES)

    @staticmethod
    def _not_storable_error(value: Any, path: str) -> Invalid:
        return Invalid(
            "not_storable",
            f"{path or 'a value'}: {type(value).__name__} cannot be stored: keep plain data, a "
            "dataclass or a pydantic model there",
            key=path,
        )

    def _pickle(self, value: Any, path: str) -> Any:
        try:
            return {TYPE_KEY: "pickle", "v": framework.encode_checkpoint_value(value)}
        except Exception as error:
            raise Invalid(
                "not_storable", f"{path}: cannot be pickled ({error})", key=path
            ) from error

    # Decoding.

    def decode(self, plain: Any) -> Any:
        """Return the decoded value.

        Raises:
            Refused: "not_allowed" for a type that is not allowed, "pickled" for a pickled value.
        """
        if isinstance(plain, list):
            return [self.decode(one) for one in plain]
        if not isinstance(plain, dict):
            return plain
        if TYPE_KEY not in plain:
            return {key: self.decode(one) for key, one in plain.items()}
        try:
            return self._decode_tagged(plain[TYPE_KEY], plain.get("v"), plain.get("t", ""))
        except (OrtetError, WorkflowCheckpointException):
            raise
        except Exception as error:
            raise Invalid(
                "bad_checkpoint",
                f"a {plain.get('t') or plain[TYPE_KEY]} of this checkpoint cannot be made again "
                f"({type(error).__name__}: {error}): load it with the release that wrote it",
            ) from error

    def _decode_tagged(self, tag: str, value: Any, key: str) -> Any:
        if tag in ("int", "float"):
            return int(value) if tag == "int" else float(value)
        for kind, (name, _, back) in _SCALAR_CODECS.items():
            if name == tag:
                instance = back(value)
                assert isinstance(instance, kind)
                return instance
        for kind, name in _COLLECTION_NAMES.items():
            if name == tag:
                return kind(self.decode(value))
        if tag in (*_MAPPING_NAMES.values(), "default"):
            pairs = [(self.decode(k), self.decode(v)) for k, v in value]
            if tag == "default":
                return defaultdict(_FACTORIES[key] if key else None, pairs)
            kinds = {name: kind for kind, name in _MAPPING_NAMES.items()}
            return kinds[tag](dict(pairs)) if tag == "counter" else kinds[tag](pairs)
        if tag == "pickle":
            return self._unpickle(value)
        cls = self._resolve(key)
        if tag == "type":
            return cls
        if tag == "enum":
            assert issubclass(cls, Enum)
            return cls[value]
        inner = self.decode(value)
        if tag == "told":
            return cls.from_dict(inner)  # type: ignore[attr-defined]
        return cls(*inner) if tag == "named" else _build_instance(cls, inner)

    def _resolve(self, key: str) -> type:
        """Return the class of a key. Modules of types that are not allowed are not imported."""
        if not self._is_allowed(key):
            raise Refused(
                "not_allowed",
                f"this checkpoint holds a {key}, which is not allowed here: give "
                f"allowed_checkpoint_types=[{key!r}] if you trust who wrote it",
            )
        module, _, qualname = key.partition(":")
        target: Any = importlib.import_module(module)
        for name in qualname.split("."):
            target = getattr(target, name)
            if not isinstance(target, type):
                raise Refused("not_allowed", f"{key} is no class: this checkpoint is not loaded")
        assert isinstance(target, type)
        return target

    def _unpickle(self, value: Any) -> Any:
        if not self._allow_pickle:
            raise Refused(
                "pickled",
                "this checkpoint holds pickled values, which can run any code: give pickle=True if "
                "you trust who wrote it",
            )
        return framework.decode_checkpoint_value(value, allowed_types=self._allowed)


def _child_path(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _fields_of(value: Any) -> dict[str, Any] | None:
    if isinstance(value, BaseException):
        return None
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    held = getattr(value, "__dict__", None)
    return dict(held) if isinstance(held, dict) else None


def _build_instance(cls: type, fields: dict[str, Any]) -> Any:
    """Create an instance with these fields.

    Fields that a later release added get their defaults.
    """
    if issubclass(cls, BaseModel):
        return cls.model_construct(**fields)
    instance = cls.__new__(cls)
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            if field.name not in fields and field.default is not dataclasses.MISSING:
                fields[field.name] = field.default
            elif field.name not in fields and field.default_factory is not dataclasses.MISSING:
                fields[field.name] = field.default_factory()
    for name, value in fields.items():
        object.__setattr__(instance, name, value)
    return instance
