"""What each operation asks of a token. What is not named asks for much: a new operation is closed until thought about."""

from dataclasses import dataclass

from api.access.tokens import Scope

READING = ("GET", "HEAD", "OPTIONS")
JOB = "{job}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What an operation asks for."""

    scope: Scope = Scope.READ
    all_jobs: bool = False
    """Whether a token for one job is not enough."""
    is_open: bool = False
    """Whether it needs no token at all."""
    is_probe: bool = False
    """Whether nobody is told to come again later: who restarts the service by the answers would do so where others ask too much."""
    is_audited: bool = False
    """Whether it goes into the audit log when it is done, and not only when it is refused."""


OPEN = Need(is_open=True)
PROBE = Need(is_open=True, is_probe=True)
LOOK = Need()
"""Shows what the token may see, whatever that is."""
REPORT = Need(scope=Scope.REPORT, is_audited=True)
ADMINISTRATION = Need(scope=Scope.ADMINISTER, all_jobs=True)

RULES: dict[tuple[str, str], Need] = {
    ("GET", "/healthz"): PROBE,
    ("GET", "/readyz"): PROBE,
    ("GET", "/login"): OPEN,
    ("POST", "/login"): OPEN,
    ("POST", "/logout"): OPEN,
    ("GET", "/v1/openapi.json"): LOOK,
    ("GET", "/v1/jobs"): LOOK,
    ("POST", "/v1/jobs"): Need(scope=Scope.REPORT, all_jobs=True, is_audited=True),
    ("POST", "/v1/jobs/{job}/events"): REPORT,
    ("POST", "/v1/jobs/{job}/reports"): REPORT,
    ("POST", "/v1/jobs/{job}/ending"): REPORT,
    ("POST", "/v1/jobs/{job}/heartbeats"): Need(scope=Scope.REPORT),
    ("POST", "/v1/jobs/{job}/generations/{generation}/lease"): REPORT,
    ("POST", "/v1/jobs/{job}/overlay/events"): REPORT,
    ("POST", "/v1/jobs/{job}/overlay/heartbeats"): Need(scope=Scope.REPORT),
    ("PUT", "/v1/rendezvous/{run}/{key}"): Need(scope=Scope.REPORT, all_jobs=True),
    ("DELETE", "/v1/rendezvous/{run}/{key}"): Need(scope=Scope.REPORT, all_jobs=True),
    ("POST", "/v1/estimates"): LOOK,
    ("POST", "/v1/whatif"): LOOK,
    ("POST", "/v1/simulations"): LOOK,
    ("GET", "/v1/tokens"): ADMINISTRATION,
    ("GET", "/v1/audit"): ADMINISTRATION,
    ("GET", "/"): LOOK,
    ("GET", "/dashboard"): LOOK,
    ("GET", "/dashboard/{path}"): LOOK,
    ("POST", "/dashboard/jobs/{job}/overlay/leave"): REPORT,
    ("GET", "/dashboard/static/{name}"): OPEN,
}
"""Need of an operation, by its method and the template of its path."""


def need_of(method: str, path: str | None) -> Need:
    """What an operation asks for.

    Args:
        method: of the request.
        path: template of the route; None where no route is: any token may learn that.
    """
    if path is None:
        return LOOK
    rule = RULES.get(("GET" if method == "HEAD" else method, path))
    if rule is not None:
        return rule
    if method in READING:
        return Need(all_jobs=JOB not in path)
    return Need(scope=Scope.ADMINISTER, all_jobs=JOB not in path, is_audited=True)
