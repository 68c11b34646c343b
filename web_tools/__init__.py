"""Search and page reading as plain services, with the fence for what they bring in.

No loop is needed to use them. Import from the modules: `web_tools.search`,
`web_tools.read`, `web_tools.fence`, `web_tools.arguments`, `web_tools.errors`.
"""

__all__ = ()
