#!/usr/bin/env python3
"""Writes tests/golden/tokenizer-variants.json: texts and the ids that the reference, Hugging Face's `tokenizers`, gives
for them with models/tiny-m3/tokenizer.json and with variants of it (each a few members replaced). Run from the root:
    python3 tests/golden/make-tokenizer-variants.py [CASES_PER_VARIANT [OUT]]
"""
import json, random, sys
import tokenizers

n_cases = int(sys.argv[1]) if len(sys.argv) > 1 else 55
out_path = sys.argv[2] if len(sys.argv) > 2 else "tests/golden/tokenizer-variants.json"
base = json.load(open("models/tiny-m3/tokenizer.json"))
random.seed(20)

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
M3 = base["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]


def split(form, pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {form: pattern}, "behavior": behavior, "invert": invert}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts) + [BYTE_LEVEL]}


def added(*contents, **flags):
    out = []
    for i, c in enumerate(contents):
        t = {"id": len(base["model"]["vocab"]) + i, "content": c, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
        t.update(flags)
        out.append(t)
    return out


ADDED = ["<a>", "<a>b", "<a>bc", "bc<", "\u0120x", "new\nline", " sp", "caf\u00e9", "\u4e2d", "]~b]", "[e~[", "<a"]
VARIANTS = {
    "as it is": {},
    "no normalizer": {"normalizer": None},
    "normalizer in a sequence": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}},
    "the pattern isolated": {"pre_tokenizer": sequence(split("Regex", M3))},
    "a string": {"pre_tokenizer": sequence(split("String", " "))},
    "a string that would be a pattern": {"pre_tokenizer": sequence(split("String", "[a-z]+"))},
    "the same as a pattern": {"pre_tokenizer": sequence(split("Regex", "[a-z]+"))},
    "a pattern that is removed": {"pre_tokenizer": sequence(split("Regex", r"\s+", "Removed"))},
    "a string that is removed": {"pre_tokenizer": sequence(split("String", "the", "Removed"))},
    "letters and marks are removed": {"pre_tokenizer": sequence(split("Regex", r"[\p{L}\p{M}]", "Removed"))},
    "digits, then words": {"pre_tokenizer": sequence(split("Regex", r"\p{N}{1,3}"), split("Regex", M3))},
    "the built-in pattern": {"pre_tokenizer": dict(BYTE_LEVEL, use_regex=True)},
    "the built-in pattern after a split": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        split("String", "'"), dict(BYTE_LEVEL, use_regex=True)]}},
    "no pattern at all": {"pre_tokenizer": BYTE_LEVEL},
    "negations": {"pre_tokenizer": sequence(split("Regex", r"[^\d\s]+|\S|\P{L}{2,}?|(?<=\n).|\x{e9}|[\u03b1-\u03c9]++"))},
    "caseless": {"pre_tokenizer": sequence(split("Regex", r"(?i:the|[k-s]{2,3}|lord's)|(a|b)+|\p{^L}"))},
    "ignore_merges": {"model": {"ignore_merges": True}},
    "fewer merges": {"model": {"merges": base["model"]["merges"][:100]}},
    "fewer merges, ignored": {"model": {"merges": base["model"]["merges"][:100], "ignore_merges": True}},
    "merges as strings": {"model": {"merges": [" ".join(m) for m in base["model"]["merges"][:600]]}},
    "many added tokens": {"added_tokens": added(*ADDED)},
    "added tokens that are normalized": {"added_tokens": added(*ADDED, "e\u0301x", normalized=True)},
    "added tokens that are not special": {"added_tokens": added(*ADDED, special=False)},
    "no added tokens": {"added_tokens": []},
    "post-processor": {"post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False,
                                          "use_regex": True}},
}
WORDS = ["a", "B", " ", "  ", "\n", "1", "234", "\u00e9", "e\u0301", "\u03a9", "\u4e2d", "'", "s", "S", "\u017f", "\u212a", "t", "ll",
         "ve", "/", "\t", "-", "\u0639", "\u0e01", "\U0001f600", "\u01c5", "\u02b0", "\u0301", "\u0327", "\r\n", "\u180e", "\u00a0",
         "\u2028", "\u0085", "\u00bd", "\uac00", "\u1112\u1161\u11ab", "\u304b\u3099", "\u200d", "\0", "\u00df", "\ufb06", "\u0898",
         "\U000323af", "\ua7cb", "the", " the", "God", " LORD's", " unto", "THE", "[a-z]+", " spirit", "\u0915\u093c", "\u0344"]


def text(contents):
    n = random.choice([3, 8, 20])
    return "".join(random.choice(contents if contents and random.random() < 0.2 else WORDS) for _ in range(n))


result = {"made": "by tests/golden/make-tokenizer-variants.py with tokenizers " + tokenizers.__version__
                  + "; set: members that replace those of models/tiny-m3/tokenizer.json", "variants": []}
for name, members in VARIANTS.items():
    t = json.loads(json.dumps(base))
    for k, v in members.items():
        t[k].update(v) if k == "model" else t.update({k: v})
    reference = tokenizers.Tokenizer.from_str(json.dumps(t))
    contents = [x["content"] for x in t["added_tokens"]]
    texts = [text(contents) for _ in range(n_cases)]
    for c in contents[:12]:
        texts += [c + "G", c + " G", c + "  G", "x" + c, c + c]
    cases = [[s, reference.encode(s, add_special_tokens=False).ids] for s in texts]
    result["variants"].append({"name": name, "set": members, "cases": cases})
with open(out_path, "w") as f:
    rows = [json.dumps({"name": v["name"], "set": v["set"]})[:-1] + ', "cases": [\n'
            + ",\n".join(json.dumps(c, separators=(",", ":")) for c in v["cases"]) + "]}" for v in result["variants"]]
    f.write('{"made": %s,\n"variants": [\n%s\n]}\n' % (json.dumps(result["made"]), ",\n".join(rows)))
