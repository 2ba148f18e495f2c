"""Event kinds of the journal: one record for each kind, and one registry of all records.

Start with `event_kind.EventKind`. It lists everything that the rest of the program asks about a
kind: the schema of its data, its reducer, whether it survives a rewind, its sections of a briefing,
its line in a journal listing. `registry.kind_of` returns the record of a kind.

- `event_kind`: the record type, its default functions, and the items that a briefing can show.
- `conversation`, `plan`, `memory`, `actions`, `budget`, `external_state`, `lifecycle`: one module
  for each family of kinds, with schemas, reducers and the records in `KINDS`.
- `registry`: all records by name, the check of event data, and `fold`, which changes a state.

Invariants:

- No other module has a list of kind names. Places that treat kinds differently ask the record.
- A kind without a record gets a default one: `CUSTOM_KIND` if its name contains a dot, otherwise
  `UNKNOWN_KIND`. Such events are kept, and they do not change the state.
- The name and the data of a stored kind never change their meaning.

Imports: `journal.state`, `journal.conversation` and the layers below. `journal.event_chain` imports
this package.
"""
