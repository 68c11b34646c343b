"""A complete search back end: the adapter, its manifest, its plugin, and the proof that it conforms.

A package puts the part above the line into a module and names it in its pyproject.toml:

    [project.entry-points."agent_runtime_pack.search"]
    acme-search = "acme_search"
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from web_tools import (
    SEARCH_CREDENTIAL_NAME,
    SearchContext,
    SearchOptions,
    SearchProvider,
    SearchRow,
    create_web_search_tool,
    define_search_provider,
    request_through_policy,
)

MANIFEST = {
    "pluginVersion": 1,
    "contributes": {"tools": [{"name": "web.search", "risk": "gated"}]},
    "credentials": ["search.apiKey"],
    "config": {
        "type": "object",
        "properties": {
            "maxSearchesPerDay": {"type": "integer"},
            "allowedHosts": {"type": "array", "items": {"type": "string"}},
            "allowPrivateAddresses": {"type": "boolean"},
            "baseUrl": {"type": "string"},
        },
        "additionalProperties": False,
    },
}
DEFAULT_URL = "https://api.acme.example"


def create_backend(config: Mapping[str, Any]) -> SearchProvider:
    base = config.get("baseUrl", DEFAULT_URL)

    async def search(
        query: str, options: SearchOptions, context: SearchContext
    ) -> Sequence[SearchRow]:
        key = await context.credentials.get(SEARCH_CREDENTIAL_NAME)
        # Literal text: this vendor reads no operators. The options go out as well, for a vendor
        # that filters ranks better; what comes back is filtered again in any case.
        fields = {"q": query, "count": options.count}
        if options.site is not None:
            fields["host"] = options.site
        if options.freshness is not None:
            fields["since"] = options.freshness.since
        # Through the policy that was handed over, never one of your own. Nothing is followed.
        response = await request_through_policy(
            f"{base}/v1/search?{urlencode(fields)}",
            policy=context.policy,
            headers={"X-Api-Key": key},
            signal=context.signal,
            wires=context.wires,
        )
        if response.status != 200:
            raise RuntimeError(f"the API answered {response.status}")
        return [
            SearchRow(
                title=row["title"],
                url=row["url"],
                # As the vendor decorates it: the tool strips the markup.
                snippet=row["description"],
                published_at=row.get("published"),
            )
            for row in response.json()["results"]
        ]

    return define_search_provider(name="acme", search=search, origins=[base])


class Plugin:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def setup(self, context: Any) -> None:
        context.tools.register(
            create_web_search_tool(
                provider=create_backend(self.config),
                config=self.config,
                credentials=context.credentials,
                on_search=lambda done: context.log and context.log(f"searched: {done.results}"),
            )
        )


def create_plugin(config: Mapping[str, Any]) -> Plugin:
    return Plugin(config)


# ── the proof, as a test of the package would run it ──────────────────────────────────────────


async def main() -> None:
    from web_tools.testing import ApiAnswer, Sent, VendorRow, check_search_provider

    def vendor(_: Sent, rows: Sequence[VendorRow]) -> ApiAnswer:
        """How this vendor writes an answer."""
        body = [
            {
                "title": row.title,
                "url": row.url,
                "description": row.snippet.replace("&", "&amp;").replace("<", "&lt;"),
                "published": row.published and row.published.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
            for row in rows
        ]
        return ApiAnswer(body=json.dumps({"results": body}))

    report = await check_search_provider(lambda: create_backend({}), vendor=vendor)
    print(report)
    report.assert_conforms()


if __name__ == "__main__":
    asyncio.run(main())
