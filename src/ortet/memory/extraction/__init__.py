"""Rule-based extraction from text: summaries, facts, near duplicates and contradictions.

None of these modules needs a model. Each task has a protocol, so that a program can pass its own
implementation.

- `summaries.summarise` (protocol `Summariser`): the summary of an episode.
- `extracting.RuleExtractor` (protocol `Extractor`): facts from messages; `facts` holds its
  patterns.
- `contradictions.RuleDetector` (protocol `Detector`): facts that contradict each other.
- `likeness.NearDuplicateIndex`: facts that say nearly the same.
- `sentences`: sentence splitting and detection of prompt injection.

Invariants: equal input gives equal output. The rules prefer to miss a fact or contradiction over
inventing one. Text is data: nothing is learned from a text that tries to steer the model.

Imports: `memory.lexical.tokenizer` and `errors`.
"""
