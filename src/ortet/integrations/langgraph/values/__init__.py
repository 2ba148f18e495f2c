"""Encodes values of LangGraph channels as parts that are stored once.

Start with `parts.PartStore`; a comment above the class defines the encoding.

- `encode.ValueEncoder`: converts values to trees and collects the new parts.
- `parts.PartStore`: the parts of one thread; decodes trees to values.
- `parts.ValuePart`: one part.
- `message_lists`: recognises message lists that were put or returned before.
- `message_refs`: computes which messages a set of trees contains.

Invariants:

- A part is stored once and never changes. Later checkpoints refer to its number.
- Messages and other parts have separate number ranges.
- A decoded value shares no mutable object with any other value.

This package may import `langgraph.messages`, `journal` and the layers below, but not sessions.
"""
