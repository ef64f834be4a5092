"""How many of a thing callers may have at once, by their roles.

Invariant: callers of a role never have what is kept for the roles above it.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.web.operation import Role

#: The most that callers of a role and of the roles below it may have together.
Shares = Mapping[Role, int]


def shares(most: int, *, viewer: int, operator: int) -> Shares:
    """Return the shares of all roles, admins having the most; no role is left without any."""
    found = {Role.PUBLIC: viewer // 2, Role.VIEWER: viewer, Role.OPERATOR: operator, Role.ADMIN: most}
    return {role: max(1, each) for role, each in found.items()}


def limit_reached(of: Shares, held: Mapping[Role, int], role: Role) -> int | None:
    """Return the limit that another one for a role would exceed; None if there is room for it."""
    for each in Role:
        if each >= role and sum(count for other, count in held.items() if other <= each) >= of[each]:
            return of[each]
    return None
