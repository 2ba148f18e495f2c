"""Find lasting statements in one English sentence: preferences, identity, needs, rules, facts.

The patterns prefer to find nothing over finding something that was not said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import msgspec

from ortet.memory.extraction.summaries import SpokenTurn, is_prompt_injection, split_sentences


class Statement(NamedTuple):
    """A statement that can be understood without its conversation."""

    text: str
    about: str
    confidence: float


RULES_SUBJECT = "rules"
"""Subject of statements about how to behave."""
_MAX_SENTENCE_CHARS = 300

_UNSURE = re.compile(
    r"\b(?:if|suppose|supposing|imagine|assum(?:e|ing)|let's say|hypothetically|would|could|might"
    r"|maybe|perhaps|probably|possibly|i (?:think|guess|suppose|wonder|hope|believe|wish|bet)"
    r"|not sure|unsure|whether|in case|for example|for instance|e\.g|seems?|appears?|apparently"
    r"|supposedly|kidding|joking|said|says|told|asked|claims?|thinks|wrote|wants?)\b"
    r"|\b(?-i:may)\b|\?|？",
    re.I,
)
_PASSING = re.compile(
    r"\b(?:right now|currently|today|tonight|tomorrow|yesterday|at the moment|for now|this "
    r"(?:morning|afternoon|evening|week|month|year|time|one)|next (?:week|month|year|time)"
    r"|last (?:week|month|year|night|time)|later|soon|again|yet|already|ago|so far|temporarily)\b"
    r"|\b(?:now|here|there)$",
    re.I,
)
"""Words that mark a temporary statement."""
_ASKED = re.compile(
    r"(?:what|why|how|when|where|who|whose|which|can|could|would|should|do|does|did|is|are|was|were"
    r"|will|may|shall|have|has|am)\b",
    re.I,
)
_OPENING = re.compile(
    r"\A(?:(?:well|so|also|and|but|btw|by the way|actually|oh|yes|yeah|yep|no|nope|ok|okay|hi|hello"
    r"|hey|fyi|as for me|personally|honestly|to be clear|in general|anyway|hm+|ah|right|sure|great"
    r"|thanks|thank you|sorry|one more thing|also note)\b[,:.!-]*\s+)+",
    re.I,
)
_CLOSING = re.compile(
    r"(?:,? (?:because|since|so that|though|although)\b|(?:,|;| -| –| —) ?(?:so|but|which|hence)\b"
    r"|,? (?:btw|by the way|please|thanks|too|as well|you know|actually|right)$).*",
    re.I,
)
_CLAUSE = re.compile(r"; |,? (?:and|but) (?=(?:I(?:['’]m)?|my|we|our|the) )", re.I)

_FIRST_OR_SECOND_PERSON = re.compile(r"\b(?:I|I['’]\w+|we|us|you|your|yours)\b", re.I)
_THEIRS = ((r"my", "their"), (r"me", "them"), (r"mine", "theirs"), (r"myself", "themselves"))
_POINTING = re.compile(
    r"(?:it|this|that|these|those|them|they|he|she|him|her|one|ones|you|your|yours|how|what|when"
    r"|where|not to|to (?:say|think|know|ask|see|bother|hear|go)|the (?:way|idea|look|sound"
    r"|approach|first|second|last|other|new|old|latter|former|same|result|plan))\b",
    re.I,
)
"""Words that refer to the conversation and cannot be understood without it."""

_HOW = r"(?:really|just|also|personally|actually|absolutely|definitely|still|do|do really) "
_HOW_OFTEN = r"always|never|usually|mostly|only|no longer|rarely|often|generally|mainly"
_NOT = r"don['’]t|do not|can['’]t|cannot|can not"
_FIRST_PERSON_CLAUSE = re.compile(
    rf"I (?:{_HOW})*(?:(?P<often>{_HOW_OFTEN}) )?(?:(?P<no>{_NOT}) )?(?:{_HOW})*"
    rf"(?:(?P<often2>{_HOW_OFTEN}) )?(?P<verb>[a-z]+) (?P<rest>.+)",
    re.I,
)
_PLACE = r"(?:in|at|near|on|with|between|by)\b"
_KIN = (
    r"(?:an?|no|one|two|three|four|five|\d+)(?: (?!about|for|on|of)\w+){0,2} (?:sons?"
    r"|daughters?|kids?|child(?:ren)?|dogs?"
    r"|cats?|pets?|brothers?|sisters?|siblings?|wife|husband|partner|twins?|allerg(?:y|ies)|degree"
    r"|phd|background|car|bike)(?:,|$| (?:named|called|who|and|in|with|at|to|from)\b)"
    r"|(?:asthma|diabetes|celiac|dyslexia|adhd|migraines)\b"
)
_VERBS = {  # verb: (pattern of what follows, third person form, confidence)
    "prefer": ("", "prefers", 0.9),
    "like": ("", "likes", 0.8),
    "love": ("", "loves", 0.8),
    "hate": ("", "hates", 0.8),
    "dislike": ("", "dislikes", 0.8),
    "enjoy": ("", "enjoys", 0.75),
    "avoid": ("", "avoids", 0.75),
    "use": ("", "uses", 0.85),
    "speak": (r"(?-i:[A-Z])", "speaks", 0.9),
    "own": (r"(?:an?|two|three|\d+)\b", "owns", 0.8),
    "drive": (r"an?\b", "drives", 0.8),
    "live": (_PLACE, "lives", 0.9),
    "work": (r"(?:at|for|as|in|from|remotely|part[- ]time|full[- ]time)\b", "works", 0.9),
    "study": (r"(?-i:[A-Z])|at\b", "studies", 0.8),
    "teach": ("", "teaches", 0.75),
    "have": (_KIN, "has", 0.85),
    "come": (r"from\b", "comes", 0.8),
    "need": (r".* to be\b", "needs", 0.65),
    "eat": ("", "eats", 0.75),
    "drink": ("", "drinks", 0.75),
}
_CANNOT = ("eat", "drink", "tolerate", "use", "stand")
_AM = re.compile(
    r"I(?:['’]m| am) (?:(?:really|also|actually|just) )*(?P<rest>(?:not )?(?:"
    r"(?:an?|the) (?!bit|little|lot|few|moment|while|fan\b)|(?:an? (?:big |huge )?fan of )"
    r"|allergic to|from |based in|married|vegan\b|vegetarian\b|(?:left|right)-handed"
    r"|colou?r-?blind|deaf|blind|diabetic|(?:lactose|gluten)[- ]intolerant|\d+ years old"
    r"|responsible for|in charge of).*)",
    re.I,
)
_BORN = re.compile(r"I (?P<rest>(?:was born|grew up) (?:in|on|near) .+)", re.I)
NAME_PATTERN = re.compile(
    r"(?:my name is|(?:please )?call me) (?P<name>(?-i:[A-Z])[\w'’-]*)\b", re.I
)


def split_clauses(sentence: str) -> list[str]:
    """Split a sentence into clauses that can be stated alone.

    Questions, guesses and temporary statements give no clauses.
    """
    if len(sentence) > _MAX_SENTENCE_CHARS or sentence[:1] in "\"“«'>‘*|#":
        return []
    bare = _OPENING.sub("", sentence.strip("-• \t")).rstrip(".!。！ ")
    if _UNSURE.search(sentence) or _PASSING.search(bare) or _ASKED.match(bare):
        return []
    parts = (_CLOSING.sub("", part).strip(" ,") for part in _CLAUSE.split(bare))
    return [part for part in parts if " " in part]


def statement_of_speaker(clause: str, who: str) -> Statement | None:
    """Return a statement of the speaker about themselves, in the third person, or None."""
    if match := NAME_PATTERN.match(clause):
        name = match["name"]
        return Statement(f"{'the user' if name == who else who} is called {name}", who, 0.9)
    if match := _AM.match(clause) or _BORN.match(clause):
        verb = "" if match.re is _BORN else "is "
        return _third_person_statement(who, f"{verb}{match['rest']}", 0.85)
    if match := re.match(r"my (?P<rest>.+)", clause, re.I):
        return _possessive_statement(match["rest"], who)
    match = _FIRST_PERSON_CLAUSE.match(clause)
    if match is None:
        return None
    verb, rest, no = match["verb"].lower(), match["rest"], (match["no"] or "").lower()
    often = (match["often"] or match["often2"] or "").lower()
    if _POINTING.match(rest):
        return None
    if no.startswith("can"):
        if verb not in _CANNOT:
            return None
        return _third_person_statement(who, f"cannot {verb} {rest}", 0.85)
    follows, reads, confidence = _VERBS.get(verb, ("(?!)", "", 0.0))
    if not re.match(follows, rest, re.I):
        return None
    if no:
        reads = f"does not {verb}"
    return _third_person_statement(who, " ".join(filter(None, [often, reads, rest])), confidence)


def _third_person_statement(who: str, predicate: str, confidence: float) -> Statement | None:
    if _FIRST_OR_SECOND_PERSON.search(predicate):
        return None
    for mine, theirs in _THEIRS:
        predicate = re.sub(rf"\b{mine}\b", theirs, predicate, flags=re.I)
    return Statement(f"{who} {predicate}", who, confidence)


def _possessive_statement(rest: str, who: str) -> Statement | None:
    whose = f"{who}'s" if not who.endswith("s") else f"{who}'"
    statement = statement_of_thing(f"the {rest}")
    if statement is None or _FIRST_OR_SECOND_PERSON.search(rest):
        return None
    about = f"{whose} {statement.about}"
    return Statement(f"{whose} {statement.text.removeprefix('the ')}", about, statement.confidence)


_CONDUCT = re.compile(
    r"(?:please )?(?P<rule>(?:always|never|do not ever|don['’]t ever) [a-z]+ .+)", re.I
)
_NO_CONDUCT = re.compile(
    r"(?:always|never) (?:mind|an?|the|been|was|had|in|on|at|before|once|happy|glad|nice|fun|good"
    r"|great|ready|ever|got|saw|seen|heard|knew|thought|forget)\b",
    re.I,
)
_HENCEFORTH = re.compile(
    r"(?:from now on|going forward|in (?:the )?future|as of now|henceforth),? (?:please )?"
    r"(?P<rule>.+)",
    re.I,
)
_REMEMBER = re.compile(
    r"(?:please )?(?:(?:remember|note|keep in mind|don['’]t forget|do not forget|be aware)"
    r"(?: that\b|[:,])|for the record[:,]?) ?(?P<inner>.+)",
    re.I,
)


def rule_of(sentence: str) -> Statement | None:
    """Return a rule of behaviour in its own words, or None.

    A rule may contain a condition, so words such as "if" are allowed.
    """
    bare = _OPENING.sub("", sentence).rstrip(".!。！ ")
    if len(sentence) > _MAX_SENTENCE_CHARS or "?" in sentence:
        return None
    match = _HENCEFORTH.match(bare)
    if match is not None and not _POINTING.match(match["rule"]):
        return Statement(match["rule"], RULES_SUBJECT, 0.9)
    match = _CONDUCT.match(bare)
    if match is None or _NO_CONDUCT.match(bare):
        return None
    return Statement(match["rule"], RULES_SUBJECT, 0.85)


def text_to_remember(clause: str) -> str:
    """Return the text that the speaker asks to remember, or ""."""
    match = _REMEMBER.match(clause)
    return match["inner"] if match else ""


_DOES = (
    r"needs?|requires?|must(?: not|n['’]t)?|runs? on|listens? on|depends? on|expects?|uses?"
    r"|supports?|costs?|belongs? to|lives? (?:in|at|on)|stands for|reports? to|starts? at|ends? at"
    r"|opens? at|closes? at|prefers?|likes?|hates?|works? (?:at|for|as)|speaks?|owns?|maintains?"
    r"|manages?|cannot|can not|can['’]t|(?:does not|doesn['’]t|do not|don['’]t) (?:support|use|need"
    r"|require|work with|run on|allow|accept|like|eat|drink|depend on)"
)
_BE = r"is|are|isn['’]t|aren['’]t|is not|are not"
_THING = re.compile(
    rf"(?P<the>(?:the|our|all|every|each) )?(?P<subject>\S+(?: \S+){{0,5}}?) "
    rf"(?:(?:also|always|never|only|usually) )?(?P<verb>{_DOES}|{_BE}) (?P<rest>.+)",
    re.I,
)
_NO_SUBJECT = re.compile(
    r"\b(?:I|my|you|we|they|he|she|it|this|that|these|those|there|here|what|who|which|why|how|when|where"
    r"|some(?:one|body|thing)|any(?:one|body|thing)|every(?:one|body|thing)|no(?:body|thing| one)"
    r"|people|things?|one|then|and|but|or|as|both|most|some|many|few|others?|let's|please|because"
    r"|problem|issue|question|point|reason|idea|answer|goal|next|first|second|rest|latter|former"
    r"|results?|errors?|bugs?|fix|solution|trick|way|truth|fact|catch|news|same|best|only|output|PR|MR"
    r"|pull request|merge request|ticket|commit|patch|diff|review)\b",
    re.I,
)
_DETERMINERS = ("the", "our", "all", "every", "each", "a", "an")
_OF_MINE = re.compile(r"\b(?:me|my|mine|myself)\b", re.I)
_NOT_LASTING = re.compile(
    r"(?:that|to|because|why|what|when|where|how|as|like|about|so|too|very|really|quite|pretty|more"
    r"|less|better|worse|best|worst|also|now|just|still|back|down|up|broken|failing|red|green|ready"
    r"|done|late|slow|fast|fine|good|bad|great|ok|okay|wrong|right|clear|weird|odd|funny|nice|here"
    r"|gone|empty|missing|stuck|busy|online|offline|sure|true|false|not|out|over|going|being|been"
    r"|happy|sad|tired|sorry|awesome|amazing|terrible|a (?:bit|lot|little|mess|problem|bug|pity"
    r"|shame|good|great|bad|nice|joke))\b|\w{3,}ing\b",
    re.I,
)
_SAYS_WHAT = re.compile(
    r"(?:called (?!once|twice|when|by|from|after|before|in|on|for|with|again)|named "
    r"|written in|stored|located|hosted|based|deployed|owned|run by|maintained"
    r"|required|mandatory|forbidden|allowed|disabled|enabled|deprecated|optional|read-only"
    r"|case-sensitive|an? |the |at |in |on |always |never )",
    re.I,
)
_SPECIFIC = re.compile(r"\d|[_/@=`]|\b(?-i:[A-Z])")


def statement_of_thing(clause: str, *, specific_only: bool = False) -> Statement | None:
    """Return a statement about a named thing, or None.

    With `specific_only`, the statement must contain a number or a name.
    """
    match = _THING.fullmatch(clause)
    if match is None:
        return None
    subject, verb, rest = match["subject"].strip("`"), match["verb"].lower(), match["rest"]
    plain = match["the"] is None and subject[:1].islower() and not _SPECIFIC.search(subject)
    if subject.lower() in _DETERMINERS or _NO_SUBJECT.search(subject):
        return None
    if _POINTING.match(rest) or _FIRST_OR_SECOND_PERSON.search(rest) or _OF_MINE.search(rest):
        return None
    if specific_only and not _SPECIFIC.search(rest):
        return None
    if re.fullmatch(_BE, verb):
        lasting = _SAYS_WHAT.match(rest) or _SPECIFIC.search(rest.split(" ", 1)[0])
        if _NOT_LASTING.match(rest) or not lasting or plain:
            return None
        confidence = 0.75
    else:
        named = re.match(r"needs?|requires?|must", verb)
        bare = match["the"] is None and " " not in subject and subject.endswith("s")
        if rest.lower().startswith("to ") or (plain and not (named and bare)):
            return None
        if bare and not _SPECIFIC.search(rest):
            return None  # generic plural, such as "kids need sleep"
        confidence = 0.8
    return Statement(clause, subject, confidence)


# Extract facts from messages: the protocol of extractors, and an extractor by rules.

__all__ = ["Extracted", "Extractor", "RuleExtractor", "SpokenTurn"]

_USER_ROLES = {"user": "the user", "human": "the user", "": "the user"}
_MODEL_ROLES = ("assistant", "model", "ai")
_IGNORED_ROLES = ("system", "developer", "tool", "function")
_REMEMBERED_CONFIDENCE = 0.95
_MODEL_CONFIDENCE_PENALTY = 0.2
"""Reduction of confidence for statements of a model, which may be guesses."""


class Extracted(msgspec.Struct, frozen=True):
    """An extracted fact. `confidence` is from 0 to 1.

    `turn` is the number of its turn, from 0, or None if it is from the text of the episode.
    """

    text: str
    about: str = ""
    confidence: float = 0.5
    turn: int | None = None


class Extractor(Protocol):
    """Extracts facts from the summary of an episode and its turns.

    Equal input must give equal output, because an episode is processed once. An extractor with a
    new `name` processes every episode again. The input is data, not instructions.
    """

    @property
    def name(self) -> str: ...

    def __call__(self, text: str, turns: Sequence[SpokenTurn]) -> list[Extracted]: ...


class RuleExtractor:
    """Extracts plain English statements: preferences, identity, needs, rules, facts about things.

    It misses many facts and invents few. Questions, guesses, temporary states and references to
    earlier text are skipped. Nothing is taken from a turn that tries to steer the model.
    """

    name = "rules-1"

    def __call__(self, text: str, turns: Sequence[SpokenTurn]) -> list[Extracted]:
        names = _speaker_names(turns)
        statements: dict[str, Extracted] = {}
        for number, turn in enumerate(turns):
            for statement in _statements_of_turn(turn, names.get(turn.speaker, "")):
                extracted = Extracted(statement.text, statement.about, statement.confidence, number)
                statements.setdefault(statement.text.casefold(), extracted)
        if not turns and not is_prompt_injection(text):
            for sentence in split_sentences(text):
                for statement in _statements_of_sentence(sentence, "", by_model=True):
                    extracted = Extracted(statement.text, statement.about, statement.confidence)
                    statements.setdefault(statement.text.casefold(), extracted)
        return list(statements.values())


def _speaker_names(turns: Sequence[SpokenTurn]) -> dict[str, str]:
    """Return the name of each speaker: its own name, the name it states, or its role."""
    names: dict[str, str] = {}
    for turn in turns:
        role = turn.speaker.casefold()
        if role not in _USER_ROLES:
            names[turn.speaker] = turn.speaker
            continue
        names.setdefault(turn.speaker, _USER_ROLES[role])
        if names[turn.speaker] == _USER_ROLES[role] and "name is" in turn.text:
            told = (
                NAME_PATTERN.match(part)
                for s in split_sentences(turn.text)
                for part in split_clauses(s)
            )
            names[turn.speaker] = next((name["name"] for name in told if name), _USER_ROLES[role])
    return names


def _statements_of_turn(turn: SpokenTurn, who: str) -> Iterator[Statement]:
    role = turn.speaker.casefold()
    if role in _IGNORED_ROLES or is_prompt_injection(turn.text):
        return
    for sentence in split_sentences(turn.text):
        yield from _statements_of_sentence(sentence, who, by_model=role in _MODEL_ROLES)


def _statements_of_sentence(sentence: str, who: str, *, by_model: bool) -> Iterator[Statement]:
    if by_model:
        for clause in split_clauses(sentence):
            statement = statement_of_thing(clause, specific_only=True)
            if statement is not None:
                yield statement._replace(
                    confidence=round(statement.confidence - _MODEL_CONFIDENCE_PENALTY, 2)
                )
        return
    rule = rule_of(sentence)
    if rule is not None:
        own = re.search(r"\b(?:I|me|my)\b", rule.text)
        yield rule._replace(text=f"{rule.text} (said by {who})") if own else rule
        return
    for clause in split_clauses(sentence):
        inner = text_to_remember(clause)
        statement = _statement_of_clause(inner or clause, who)
        if inner and statement is not None:
            yield statement._replace(confidence=max(_REMEMBERED_CONFIDENCE, statement.confidence))
        elif statement is not None:
            yield statement


def _statement_of_clause(clause: str, who: str) -> Statement | None:
    return (
        statement_of_speaker(clause, who)
        or statement_of_thing(clause)
        or _group_statement(clause, who)
    )


def _group_statement(clause: str, who: str) -> Statement | None:
    """Return a statement about "we", attributed to the speaker: the group is unknown."""
    if clause[:3].casefold() != "we ":
        return None
    statement = statement_of_thing(f"the team {clause[3:]}")
    return statement and Statement(f"according to {who}, we {clause[3:]}", who, 0.75)
