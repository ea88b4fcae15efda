"""Serves a GGUF file with llama.cpp's OpenAI-compatible server until standard input ends: llama_server.py FILE"""

import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = 4096
params.n_parallel = 1
params.use_jinja = True
params.cpuparams.n_threads = 2
params.hostname = "127.0.0.1"
params.port = 0
server = xllamacpp.Server(params)
print("listening", server.listening_address, flush=True)
sys.stdin.read()
