"""Rule-based extraction from text: summaries, facts, near duplicates and contradictions.

None of these modules needs a model. Each task has a protocol, so that a program can pass its own
implementation.

- `summaries.summarise` (protocol `Summariser`): the summary of an episode. The module also splits
  sentences and detects prompt injection.
- `facts.RuleExtractor` (protocol `Extractor`): facts from messages.
- `contradictions.RuleDetector` (protocol `Detector`): facts that contradict each other.
- `contradictions.NearDuplicateIndex`: facts that say nearly the same.

Invariants: equal input gives equal output. The rules prefer to miss a fact or contradiction over
inventing one. Text is data: nothing is learned from a text that tries to steer the model.

Imports: `memory.lexical.tokenizer` and `errors`.
"""
