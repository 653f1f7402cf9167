"""Renders chat templates with the real jinja2, set up as `transformers` sets it up.

Reads a JSON list of {"template", "context", "now"} from stdin, writes a list of {"text"} or {"error"}.
"""

import json
import sys
from datetime import datetime
from functools import lru_cache

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """`{% generation %}` prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class Raised(Exception):
    pass


def environment(now: datetime) -> Environment:
    def raise_exception(message):
        raise Raised(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = now.strftime
    return env


@lru_cache
def compiled(template: str, now: str):
    return environment(datetime.fromisoformat(now)).from_string(template)


def render(case):
    try:
        return {"text": compiled(case["template"], case["now"]).render(**case["context"])}
    except Raised as error:
        return {"refused": str(error)}
    except (TemplateError, TypeError, ValueError) as error:
        return {"failed": type(error).__name__}


json.dump([render(case) for case in json.load(sys.stdin)], sys.stdout)
