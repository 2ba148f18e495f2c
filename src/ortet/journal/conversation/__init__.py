"""Messages of a session: context, compaction, tool calls, formats of model providers.

- `context.build_context` is the entry point: it selects the messages for a model call within a
  number of tokens.
- `compaction` replaces old messages in the context by a summary.
- `tool_calls` keeps calls and results together.
- `provider_formats` converts messages to the formats of model APIs.
- `superseded` holds the ranges of messages that are no longer part of the conversation.
- `text` turns content into plain text and counts tokens.

Invariants: no message is deleted; compaction and superseding only hide messages. A tool call is
never separated from its result, because model APIs refuse such a conversation.

Imports: `journal` modules, `_util`, `ids` and `errors`.
"""
