"""A mypy plugin: an attribute is assigned only in the file of the class that declares it.

Messages and stored records are not checked, because they are values that are filled in where they are created. Classes
of libraries are not checked either.
"""

from collections.abc import Callable

from mypy.checker import TypeChecker
from mypy.errorcodes import ErrorCode
from mypy.nodes import MemberExpr, NameExpr
from mypy.plugin import AttributeContext, Plugin
from mypy.types import Type

CODE = ErrorCode("foreign-assignment", "An attribute is assigned outside the file of its class", "kpybroker")
OWN = ("self", "cls")
"""Assignments on `self`, which tests/test_layers.py checks."""
MESSAGES = ("kpybroker.wire.rpc.", "kpybroker.wire.stored.")


class AssignmentRule(Plugin):
    """Reports assignments from other files as `foreign-assignment`."""

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        """The check of an attribute, by its full name (`kpybroker.storage.log.log.Log.end`)."""
        if not fullname.startswith("kpybroker.") or fullname.startswith(MESSAGES):
            return None
        owner, _, name = fullname.rpartition(".")

        def check(context: AttributeContext) -> Type:
            assert isinstance(context.api, TypeChecker)
            target = context.context
            is_own = isinstance(target, MemberExpr) and isinstance(target.expr, NameExpr) and target.expr.name in OWN
            if context.is_lvalue and not is_own and not fullname.startswith(context.api.tree.fullname + "."):
                context.api.fail(f'"{name}" is assigned outside the file of {owner}', context.context, code=CODE)
            return context.default_attr_type

        return check


def plugin(version: str) -> type[Plugin]:
    """The entry point that mypy calls."""
    return AssignmentRule
