"""The views: one module per page, with its data and its function.

Start with `sessions`, the first page, or `journal`, a page of one session. A view has a query
struct, a function that builds the page data (`build_..._page`), and a function from PageRequest to
Response that renders a template. The build functions need no HTTP request.

- `timeline`, `timeline_graph`: the commit graph of a session.
- `commit`, `patch`, `replay`: commits, differences, past states.
- `budget` is the budget page with its plots. `storage` is the page of the store.
- `live_updates` tells open pages that the store has changed. `api_reference` is /docs.

Invariants:
- A list on a page has a limit, because a session may have thousands of events or commits.
- Views read data through `PageRequest`, which applies the rights of the caller.

The modules may import `web.request`, `web.templates` and what `web` may import.
"""
