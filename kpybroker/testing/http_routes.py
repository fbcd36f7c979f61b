"""The routes of an HTTP API: functions with their method and path, whose arguments are read from requests.

The annotations of a function declare what it takes, so that requests are checked and documented from one place.
"""

from __future__ import annotations

import html
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl, unquote, urlsplit

from kpybroker.similar_names import meant

OBJECT_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_IN_BRACES = re.compile(r"\{(\w+)\}")


class HttpError(Exception):
    """A request that is refused, with the status of the response."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Parameter(NamedTuple):
    """An argument of a route."""

    name: str
    hint: Any
    is_required: bool


class Route(NamedTuple):
    """A function that answers requests with this method and path; `{name}` in the path is an argument."""

    method: str
    path: str
    call: Callable[..., Any]

    @property
    def summary(self) -> str:
        """The text about it."""
        return " ".join((inspect.getdoc(self.call) or "").split())

    @property
    def parameters(self) -> list[Parameter]:
        """Its arguments, without the object that it acts on."""
        hints = get_type_hints(self.call)
        found = []
        for name, each in list(inspect.signature(self.call).parameters.items())[1:]:
            if each.kind is each.VAR_KEYWORD:  # Unpack[SomeTypedDict]
                (row,) = get_args(hints[name])
                found += [Parameter(field, hint, False) for field, hint in get_type_hints(row).items()]
            else:
                found.append(Parameter(name, hints[name], each.default is each.empty))
        return found

    @property
    def in_path(self) -> list[str]:
        """The names of the arguments in its path."""
        return _IN_BRACES.findall(self.path)

    def matches(self, parts: Sequence[str]) -> dict[str, str] | None:
        """The arguments in a path, or None if it is not a path of this route."""
        own = self.path.split("/")[1:]
        if len(own) != len(parts):
            return None
        found = {}
        for ours, theirs in zip(own, parts, strict=True):
            if ours.startswith("{"):
                found[ours[1:-1]] = theirs
            elif ours != theirs:
                return None
        return found


class Routes:
    """All routes of an API, in the order in which they are documented."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._routes: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def add(self, method: str, path: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorates the function of a route."""

        def with_function(call: Callable[..., Any]) -> Callable[..., Any]:
            self._routes.append(Route(method, path, call))
            return call

        return with_function

    def find(self, method: str, target: str, body: bytes) -> tuple[Route, dict[str, Any]]:
        """The route of a request, and its arguments. Raises HttpError."""
        url = urlsplit(target)
        parts = [unquote(part) for part in url.path.split("/")[1:]]
        found = [(route, in_path) for route in self._routes if (in_path := route.matches(parts)) is not None]
        if not found:
            paths = [route.path for route in self._routes]
            raise HttpError(404, f"there is no path {url.path!r}{meant(url.path, paths)}; / lists all")
        by_method = [(route, in_path) for route, in_path in found if route.method == method]
        if not by_method:
            raise HttpError(405, f"{url.path} takes {' and '.join(route.method for route, _ in found)}, not {method}")
        route, in_path = by_method[0]
        texts = {**dict(parse_qsl(url.query, keep_blank_values=True)), **in_path}
        return route, _arguments(route, texts, _object_in(body))

    def openapi(self) -> dict[str, Any]:
        """The description of the API as OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.0)."""
        paths: dict[str, dict[str, Any]] = {}
        for route in self._routes:
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
        return {"openapi": "3.1.0", "info": {"title": self._title, "version": "1"}, "paths": paths}

    def page(self) -> str:
        """The description of the API as HTML."""
        rows = "".join(
            f"<tr><td>{route.method}</td><td><code>{html.escape(route.path)}</code></td>"
            f"<td>{html.escape(route.summary)}</td><td>{html.escape(_shown(route))}</td></tr>\n"
            for route in self._routes
        )
        return PAGE.format(title=html.escape(self._title), rows=rows)


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em;
color-scheme: light dark }}
table {{ border-collapse: collapse }} td, th {{ text-align: left; vertical-align: top; padding: .3em .8em .3em 0;
border-bottom: 1px solid #8884 }} pre {{ overflow-x: auto }}
</style></head><body><h1>{title}</h1>
<p>Arguments are in the path, and as JSON in the body; those of GET are in the query. Responses are JSON; an error has a
field <code>error</code>. <a href="openapi.json">openapi.json</a> describes all this for generators of clients.</p>
<pre>curl -X POST localhost:PORT/faults -d '{{"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "times": 1}}'</pre>
<table><tr><th>method</th><th>path</th><th>what it does</th><th>arguments (? optional)</th></tr>
{rows}</table></body></html>
"""


def _shown(route: Route) -> str:
    return ", ".join(
        f"{each.name}{'' if each.is_required else '?'}" for each in route.parameters if each.name not in route.in_path
    )


def _object_in(body: bytes) -> dict[str, Any]:
    """The JSON object in a request. Raises HttpError."""
    if not body.strip():
        return {}
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise HttpError(400, 'the body must be a JSON object, such as {"by": "8d"}')
    return found


def _arguments(route: Route, texts: Mapping[str, str], body: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call: as texts in the path and the query, as JSON in the body. Raises HttpError."""
    hints = {each.name: each.hint for each in route.parameters}
    for name in (*texts, *body):
        if name not in hints:
            raise HttpError(400, f"{route.method} {route.path} has no argument {name!r}{meant(name, hints)}")
    found = {name: _from_text(name, text, hints[name]) for name, text in texts.items()}
    found |= {name: _checked(name, value, hints[name]) for name, value in body.items() if name not in route.in_path}
    missing = [each.name for each in route.parameters if each.is_required and each.name not in found]
    if missing:
        raise HttpError(400, f"{route.method} {route.path} needs {' and '.join(missing)}")
    return found


def _from_text(name: str, text: str, hint: Any) -> Any:
    kinds = _kinds(hint)
    if str in kinds:
        return text
    if bool in kinds and text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    raise HttpError(400, f"{name}={text!r} is not {_described(hint)}")


def _checked(name: str, value: Any, hint: Any) -> Any:
    """The value, if it has the type. An object's names become integers if the type says so. Raises HttpError."""
    for kind in _kinds(hint):
        if kind is type(None):
            if value is None:
                return None
        elif get_origin(kind) is list:
            if isinstance(value, list):
                return [_checked(f"{name}[{at}]", each, get_args(kind)[0]) for at, each in enumerate(value)]
        elif get_origin(kind) in (dict, Mapping):
            if isinstance(value, dict):
                of_name, of_value = get_args(kind)
                return {
                    _from_text(name, key, of_name): _checked(f"{name}.{key}", each, of_value)
                    for key, each in value.items()
                }
        elif kind is object or (type(value) is int and kind is float) or type(value) is kind:
            return value
    raise HttpError(400, f"{name}={value!r} is not {_described(hint)}")


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


def _described(hint: Any) -> str:
    names = {str: "a string", int: "an integer", float: "a number", bool: "true or false", type(None): "null"}
    return " or ".join(
        names.get(kind) or ("a list" if get_origin(kind) is list else "an object") for kind in _kinds(hint)
    )


def _schema(hint: Any) -> dict[str, Any]:
    schemas: list[dict[str, Any]] = []
    for kind in _kinds(hint):
        if kind is type(None):
            schemas.append({"type": "null"})
        elif get_origin(kind) is list:
            schemas.append({"type": "array", "items": _schema(get_args(kind)[0])})
        elif get_origin(kind) in (dict, Mapping):
            schemas.append({"type": "object", "additionalProperties": _schema(get_args(kind)[1])})
        else:
            schemas.append({} if kind is object else {"type": OBJECT_TYPES[kind]})
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _operation(route: Route) -> dict[str, Any]:
    in_query = route.method == "GET"
    operation: dict[str, Any] = {
        "operationId": route.call.__name__,
        "summary": route.summary,
        "responses": {
            "200": {"description": "done", "content": {"application/json": {"schema": {}}}},
            "default": {
                "description": "refused",
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "object",
                            "properties": {"error": {"type": "string"}},
                            "required": ["error"],
                        }
                    }
                },
            },
        },
    }
    of_address = [each for each in route.parameters if in_query or each.name in route.in_path]
    if of_address:
        operation["parameters"] = [
            {
                "name": each.name,
                "in": "path" if each.name in route.in_path else "query",
                "required": each.is_required,
                "schema": _schema(each.hint),
            }
            for each in of_address
        ]
    in_body = [each for each in route.parameters if each not in of_address]
    if in_body:
        schema: dict[str, Any] = {
            "type": "object",
            "additionalProperties": False,
            "properties": {each.name: _schema(each.hint) for each in in_body},
        }
        required = [each.name for each in in_body if each.is_required]
        if required:
            schema["required"] = required
        operation["requestBody"] = {"required": bool(required), "content": {"application/json": {"schema": schema}}}
    return operation
