"""Encodes values of LangGraph channels as parts that are stored once.

Start with `heap.PartStore`; its module docstring defines the encoding.

- `encode.ValueEncoder`: converts values to trees and collects the new parts.
- `heap.PartStore`: the parts of one thread; decodes trees to values.
- `parts.ValuePart`: one part.
- `rows`: caches message lists, to recognise an unchanged prefix quickly.
- `message_refs`: computes which messages a set of trees contains.

Invariants:

- A part is stored once and never changes. Later checkpoints refer to its number.
- Messages and other parts have separate number ranges.

This package may import `langgraph.messages`, `journal` and the layers below, but not sessions.
"""
