"""Generates random schemas and values with the verdict of the `jsonschema` package: one JSON line for each.

Usage: `judged.py SEED COUNT`. Only keywords that Windlass supports are generated.
"""

import json
import random
import sys

from jsonschema import Draft202012Validator

NAMES = ["a", "b", "c", "ab", "é", 'a"b', "zz\n", "long_name_of_a_field"]
TEXTS = ["", "a", "ab", "é", 'a"b', "x\\y", "\n", "😀", "long text that goes on", "12"]
NUMBERS = [0, 1, -1, 2, 3.5, 2.0, 1e20, 1e300, -0.5, 9007199254740993, 10, 99]
TYPES = ["null", "boolean", "string", "number", "integer", "array", "object"]


def by_chance(share):
    return random.random() < share


def some(most, make):
    return [make() for _ in range(random.randint(0, most))]


def value(depth=0):
    kind = random.random()
    if depth > 2 or kind < 0.6:
        return random.choice([None, True, False, *2 * [random.choice(TEXTS), random.choice(NUMBERS)]])
    if kind < 0.8:
        return some(3, lambda: value(depth + 1))
    return {random.choice(NAMES): value(depth + 1) for _ in range(random.randint(0, 4))}


def schema(depth=0):
    kind = random.random()
    if depth and kind < 0.05:
        return random.choice([True, False])
    if depth and kind < 0.12:
        return {"$ref": f"#/$defs/D{random.randint(0, 2)}"}
    rules = {}
    if by_chance(0.6):
        rules["type"] = random.choice(TYPES) if by_chance(0.7) else random.sample(TYPES, random.randint(1, 3))
    if by_chance(0.08):
        rules["enum"] = [value(1), *some(3, lambda: value(1))]
    if by_chance(0.04):
        rules["const"] = value(1)
    for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if by_chance(0.09):
            rules[keyword] = random.choice(NUMBERS)
    for keyword in ("minLength", "maxLength"):
        if by_chance(0.1):
            rules[keyword] = random.randint(0, 4)
    return rules if depth > 2 else rules | parts(depth)


def parts(depth):
    rules = {}
    inner = lambda: schema(depth + 1)
    if by_chance(0.35):
        rules["properties"] = {random.choice(NAMES): inner() for _ in range(random.randint(0, 4))}
        if by_chance(0.5):
            rules["required"] = sorted({random.choice(NAMES) for _ in range(random.randint(0, 2))})
        if by_chance(0.5):
            rules["additionalProperties"] = random.choice([False, True]) if by_chance(0.7) else inner()
    if by_chance(0.2):
        rules["items"] = inner()
    if by_chance(0.08):
        rules["prefixItems"] = [inner(), *some(1, inner)]
    if by_chance(0.08):
        rules["uniqueItems"] = True
    for keyword in ("minProperties", "maxProperties", "minItems", "maxItems"):
        if by_chance(0.09):
            rules[keyword] = random.randint(0, 3)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if by_chance(0.07):
            rules[keyword] = [inner(), *some(2, inner)]
    return rules


def near(rules, root, depth=0):
    """Returns a value that is likely to be valid; most random values are not."""
    if depth > 4 or by_chance(0.25) or isinstance(rules, bool):
        return value(depth)
    if "$ref" in rules:
        return near(root["$defs"][rules["$ref"][-2:]], root, depth + 1)
    if "const" in rules:
        return rules["const"]
    if "enum" in rules:
        return random.choice(rules["enum"])
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in rules:
            return near(random.choice(rules[keyword]), root, depth + 1)
    kind = rules.get("type")
    kind = random.choice(kind) if isinstance(kind, list) else kind
    kind = kind or ("object" if "properties" in rules else "array" if "items" in rules else "string")
    if kind == "array":
        return some(3, lambda: near(rules.get("items", True), root, depth + 1))
    if kind == "object":
        fields = rules.get("properties", {}).items()
        wanted = rules.get("required", [])
        return {name: near(of, root, depth + 1) for name, of in fields if name in wanted or by_chance(0.8)}
    leaves = {"null": [None], "boolean": [True, False], "string": TEXTS}
    return random.choice(leaves.get(kind, NUMBERS))


random.seed(int(sys.argv[1]))
left = int(sys.argv[2])
while left > 0:
    root = schema() | {"$defs": {f"D{number}": schema(2) for number in range(3)}}
    validator = Draft202012Validator(root)
    for _ in range(4):
        one = near(root, root)
        try:
            fits = validator.is_valid(one)
        except RecursionError:
            # A schema with unbounded recursion has no verdict.
            break
        print(json.dumps({"schema": root, "value": one, "fits": fits}, ensure_ascii=False))
        left -= 1
