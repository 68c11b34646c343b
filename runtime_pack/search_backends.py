"""Back ends from packages: found as entry points, held to their manifest, one at a time.

A package registers a module under the group `agent_runtime_pack.search`; the module has `MANIFEST`
and `create_plugin(config)`. What a manifest must say is checked before a line of the back end runs,
apart from its module. Two enabled back ends are an error that names both: each contributes
`web.search`, and a tool name is unique.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs

from runtime_pack.catalog import CatalogTool
from runtime_pack.errors import ContractError
from runtime_pack.schema import SchemaError, compile_schema
from runtime_pack.strictness import ApprovalClass
from runtime_pack.web_search import web_search_tool
from web_tools.contract.agents import AgentProfiles
from web_tools.contract.engine import TOOL_NAME, Desk
from web_tools.contract.provider import SEARCH_CREDENTIAL_NAME
from web_tools.contract.settings import SETTING_TYPES, parse_settings
from web_tools.contract.tool import WebSearchTool
from web_tools.errors import CredentialRefused, InvalidSetup
from web_tools.fence import FenceMode

if TYPE_CHECKING:
    from citations import RevisionStore

__all__ = (
    "GROUP",
    "Manifest",
    "PluginContext",
    "SearchBackend",
    "load_search_backend",
    "parse_manifest",
)

GROUP: Final = "agent_runtime_pack.search"
_VERSION: Final = 1
_MANIFEST: Final = frozenset({"pluginVersion", "contributes", "credentials", "config"})
_RISKS: Final = ("safe", "gated")
# Keys of the operator's block that no back end declares: they are read here.
_OURS: Final = frozenset({"enabled", "agents"})
# A key in a file that people commit is a key that people publish.
_SECRET: Final = re.compile(r"api[-_.]?key|secret|token|passw|credential", re.IGNORECASE)


@attrs.frozen(kw_only=True)
class Manifest:
    """What a package says of itself, checked.

    Attributes:
        credentials: Names that its back end may ask for.
        config: JSON Schema of the operator's block.
        declared_risk: What it calls itself; it is registered gated all the same.
    """

    credentials: tuple[str, ...]
    config: Mapping[str, Any]
    declared_risk: str


@attrs.frozen(kw_only=True)
class SearchBackend:
    """The one enabled back end.

    Attributes:
        package: Its name in the configuration.
        tool: The plain service, for `as_web_search_provider`.
        catalog_tool: The same for a governed run.
    """

    package: str
    manifest: Manifest
    tool: WebSearchTool
    catalog_tool: CatalogTool


class _Tools:
    """Takes the one tool that a back end may contribute."""

    def __init__(self, package: str) -> None:
        self._package = package
        self.registered: WebSearchTool | None = None

    def register(self, tool: WebSearchTool) -> None:
        """Take the tool.

        Raises:
            ContractError: It is not made by `create_web_search_tool`, or is the second one.
        """
        if not isinstance(tool, WebSearchTool):
            raise ContractError(self._package, f"registers something that is not {TOOL_NAME}")
        if self.registered is not None:
            raise ContractError(self._package, f"registers {TOOL_NAME} twice")
        self.registered = tool


@attrs.frozen(kw_only=True)
class PluginContext:
    """What `setup` of a plugin is given.

    Attributes:
        tools: `context.tools.register(create_web_search_tool(…))`.
        credentials: Those that the manifest names; None when the host has none.
        log: Takes one line; None when nobody reads it.
    """

    tools: _Tools
    credentials: Desk | None
    log: Callable[[str], object] | None


class Plugin(Protocol):
    """What `create_plugin` gives."""

    def setup(self, context: PluginContext) -> object:
        """Register the tool."""
        ...


@attrs.frozen
class _Declared:
    """Credentials of the manifest: another name is refused whatever a profile says."""

    desk: Desk
    names: tuple[str, ...]

    async def get(self, name: str, *, agent: str) -> str:
        if name not in self.names:
            raise CredentialRefused(agent, name)
        return await self.desk.get(name, agent=agent)


def load_search_backend(
    plugins: Mapping[str, Mapping[str, Any]],
    *,
    credentials: Desk | None = None,
    agents: AgentProfiles | None = None,
    log: Callable[[str], object] | None = None,
    approval_class: ApprovalClass | str = ApprovalClass.NOTIFY,
    revisions: RevisionStore | None = None,
    fence_mode: FenceMode | str = FenceMode.FENCE,
    entry_points: Iterable[metadata.EntryPoint] | None = None,
) -> SearchBackend | None:
    """The back end that *plugins* enables; None when it enables none.

    Args:
        plugins: Package to its block: `enabled`, the settings, `agents`, and its own keys. From a
            trusted configuration only.
        credentials: Where keys come from.
        agents: Who may search.
        log: Takes one line for each search, without the query.
        approval_class: At least `notify`.
        revisions: Keeps the text of every result, see `web_search_tool`.
        fence_mode: How each result is written inside its fence.
        entry_points: Of the group; those of the environment by default.

    Raises:
        ContractError: Two are enabled, the enabled one is not installed or is there twice, its
            manifest or its block is not valid, or it does not register the tool.
    """
    enabled = sorted(name for name, block in plugins.items() if _is_enabled(name, block))
    if len(enabled) > 1:
        both = " and ".join(enabled)
        raise ContractError("plugins", f"{both} are enabled, and each contributes {TOOL_NAME}")
    if not enabled:
        return None
    (package,) = enabled
    found = metadata.entry_points(group=GROUP) if entry_points is None else entry_points
    module = _loaded(package, found)
    manifest = _manifest(package, module)
    block = {key: value for key, value in plugins[package].items() if key != "enabled"}
    _check_block(package, manifest, block)
    desk = None if credentials is None else _Declared(credentials, manifest.credentials)
    tool = _registered(package, module, block, desk, log)
    tool.engine.hold_to(settings=parse_settings(block), credentials=desk, agents=agents)
    return SearchBackend(
        package=package,
        manifest=manifest,
        tool=tool,
        catalog_tool=web_search_tool(
            tool, approval_class=approval_class, revisions=revisions, fence_mode=fence_mode
        ),
    )


def _is_enabled(package: str, block: object) -> bool:
    if not isinstance(block, Mapping) or not isinstance(block.get("enabled", False), bool):
        raise ContractError(f"plugins.{package}", "must be a table, its `enabled` true or false")
    return block.get("enabled") is True


def _loaded(package: str, found: Iterable[metadata.EntryPoint]) -> Any:
    points = [point for point in found if point.name == package and point.group == GROUP]
    if not points:
        raise ContractError(f"plugins.{package}", f"no installed package registers it in {GROUP}")
    if len({point.value for point in points}) > 1:
        raise ContractError(f"plugins.{package}", "two installed packages register this name")
    # The package's own code: whatever importing it raises, it cannot be loaded.
    try:
        return points[0].load()
    except (Exception, SystemExit) as error:
        problem = f"cannot be loaded ({type(error).__name__})"
        raise ContractError(f"plugins.{package}", problem) from error


def _manifest(package: str, module: Any) -> Manifest:
    """The manifest of a module, whose attributes may be anything."""
    try:
        return parse_manifest(getattr(module, "MANIFEST", None), package=package)
    except ContractError:
        raise
    # The package's own objects: whatever reading them raises, they are no manifest.
    except (Exception, SystemExit) as error:
        problem = f"its MANIFEST cannot be read ({type(error).__name__})"
        raise ContractError(f"plugins.{package}", problem) from error


def _registered(
    package: str,
    module: Any,
    block: Mapping[str, Any],
    desk: Desk | None,
    log: Callable[[str], object] | None,
) -> WebSearchTool:
    tools = _Tools(package)
    try:
        plugin: Plugin = module.create_plugin(block)
        plugin.setup(PluginContext(tools=tools, credentials=desk, log=log))
    except ContractError:
        raise
    except InvalidSetup as error:
        raise ContractError(f"plugins.{package}", str(error)) from error
    # The package's own code: whatever it raises, it cannot be set up.
    except (Exception, SystemExit) as error:
        problem = f"cannot be set up ({type(error).__name__})"
        raise ContractError(f"plugins.{package}", problem) from error
    if tools.registered is None:
        raise ContractError(f"plugins.{package}", f"does not register {TOOL_NAME}")
    return tools.registered


def parse_manifest(raw: object, *, package: str) -> Manifest:
    """The manifest of *package*.

    Raises:
        ContractError: A key is missing or unknown, or says something that cannot be.
    """
    body = _table(raw, f"{package}: MANIFEST")
    unknown, missing = sorted(body.keys() - _MANIFEST), sorted(_MANIFEST - body.keys())
    if unknown or missing:
        told = f"is no key of a manifest: {unknown[0]}" if unknown else f"lacks {missing[0]}"
        raise ContractError(f"{package}: MANIFEST", told)
    if type(body["pluginVersion"]) is not int or body["pluginVersion"] != _VERSION:
        raise ContractError(f"{package}: pluginVersion", f"must be {_VERSION}")
    return Manifest(
        declared_risk=_risk(package, body["contributes"]),
        credentials=_credential_names(package, body["credentials"]),
        config=_config_schema(package, body["config"]),
    )


def _table(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ContractError(path, "must be an object")
    return value


def _risk(package: str, contributes: object) -> str:
    body = _table(contributes, f"{package}: contributes")
    tools = body.get("tools")
    if body.keys() != {"tools"} or not isinstance(tools, list | tuple) or len(tools) != 1:
        raise ContractError(f"{package}: contributes", f"must be the one tool {TOOL_NAME}")
    tool = _table(tools[0], f"{package}: contributes.tools[0]")
    if tool.keys() != {"name", "risk"} or tool["name"] != TOOL_NAME:
        raise ContractError(f"{package}: contributes", f"must be the one tool {TOOL_NAME}")
    if tool["risk"] not in _RISKS:
        raise ContractError(f"{package}: risk", f"must be one of {', '.join(_RISKS)}")
    return str(tool["risk"])


def _credential_names(package: str, names: object) -> tuple[str, ...]:
    if not isinstance(names, list | tuple) or any(name != SEARCH_CREDENTIAL_NAME for name in names):
        told = f"may name {SEARCH_CREDENTIAL_NAME} and nothing else, whatever the vendor"
        raise ContractError(f"{package}: credentials", told)
    return tuple(dict.fromkeys(names))


def _config_schema(package: str, schema: object) -> Mapping[str, Any]:
    path = f"{package}: config"
    body = _table(schema, path)
    properties = _table(body.get("properties", {}), f"{path}.properties")
    for key, kind in SETTING_TYPES.items():
        declared = properties.get(key)
        if not isinstance(declared, Mapping) or declared.get("type") != kind:
            raise ContractError(path, f"must declare {key} as {kind}: the shared tool reads it")
    for key in properties:
        if key in _OURS:
            raise ContractError(path, f"declares {key}, which is not the back end's")
        if _SECRET.search(key):
            told = f"declares {key}: a key belongs in the credential store, never in a file"
            raise ContractError(path, told)
    if body.get("type") != "object" or body.get("additionalProperties") is not False:
        raise ContractError(path, "must be an object without additional properties")
    try:
        compile_schema(body)
    except SchemaError as error:
        raise ContractError(path, str(error)) from error
    return body


def _check_block(package: str, manifest: Manifest, block: Mapping[str, Any]) -> None:
    """Hold the operator's block, and each agent's part of it, to the schema of the manifest."""
    check = compile_schema(manifest.config)
    own = {key: value for key, value in block.items() if key not in _OURS}
    agents = _table(block.get("agents", {}), f"plugins.{package}.agents")
    parts = {"": own, **{f".agents.{agent}": part for agent, part in agents.items()}}
    for where, part in parts.items():
        given = _table(part, f"plugins.{package}{where}")
        # An override says a part only; what it leaves out is inherited.
        whole = {**own, **given} if where else given
        faults = check(whole)
        if faults:
            first = faults[0]
            place = f"plugins.{package}{where}{first.path.replace('/', '.')}"
            raise ContractError(place, first.problem)
    try:
        parse_settings(block)
    except InvalidSetup as error:
        raise ContractError(f"plugins.{package}.{error.field}", error.problem) from error
