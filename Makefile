# make setup | quickstart | test | lint: each needs only Python 3.11+, pip and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.stagesweep-installed
# torch_xla goes with one torch only, so it lives in an environment of its own.
XLA_VENV  ?= .venv-xla
XLA_STAMP := $(XLA_VENV)/.stagesweep-installed
# A quarter of the tests' time is waiting for processes: three at a time keep two cores busy.
JOBS   ?= 3

# Tests sync thousands of small files, which takes milliseconds each on a disk; in memory, 30 times less.
MEMORY := $(shell df --output=avail -k /dev/shm 2> /dev/null | tail -n 1)
test test-again test-slow test-slow-again test-numerics: export TMPDIR ?= $(if $(shell [ "0$(strip $(MEMORY))" -gt 4000000 ] && echo yes),/dev/shm,/tmp)

export OMP_NUM_THREADS ?= 1
# Images of containers often set it. A program that must compile what it imports starts ten seconds later, each time.
unexport PYTHONDONTWRITEBYTECODE
export TOKENIZERS_PARALLELISM ?= false

.PHONY: setup quickstart bubblewrap test test-again test-slow-again test-fast test-numerics test-slow test-browser test-slurm test-nfs test-ray test-skypilot test-newest test-oldest test-debian test-release setup-xla install-xla test-xla lint format docs pictures bench bench-gpu findings clean

setup: $(STAMP)

# uv installs from where pip would, in 5 s of CPU where pip takes 60. Where it fails, pip installs, or says why not.
PLACES := sed -nE "s/.*\.(index-url|extra-index-url|find-links)='(.*)'/\1 \2/p" | while read -r name values; do \
  for each in $$values; do echo "--$$name=$$each"; done; done
# The torch of `make setup`: newer ones bring 5 GB with its libraries for CUDA, which tests do not need. TORCH=torch takes it.
TORCH := torch<2.14
# Of thirty thousand files most are never imported: compiling only those that are halves what this computes.
IMPORTED := import sweeps.search.optimizer, analysis.report.report, trainer.preload; trainer.preload.preload([])
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "stagesweep needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 setup")'
	$(PYTHON) -m venv $(VENV)
	@pip="$(BIN)/python -m pip"; places=$$($$pip config list | $(PLACES)); \
	{ $$pip install --quiet --disable-pip-version-check 'uv>=0.9' && \
	  $(BIN)/uv pip install --quiet $$places --index-strategy unsafe-best-match --python $(BIN)/python -e ".[dev]" "$(TORCH)"; } || \
	$$pip install --quiet --disable-pip-version-check --no-compile -e ".[dev]" "$(TORCH)"
	$(BIN)/python -c '$(IMPORTED)'
	@touch $@

quickstart: $(STAMP)
	@$(BIN)/sweep quickstart

test: $(STAMP) bubblewrap
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations 20

# The sandbox of the C++ evaluation is built on it. Installed where there is apt-get; elsewhere its tests skip.
bubblewrap:
	@command -v bwrap > /dev/null || { command -v apt-get > /dev/null && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends bubblewrap > /dev/null; } || \
	  echo "the tests of the C++ sandbox are left out: bubblewrap is not here, and apt-get cannot install it"

# The tests that failed when `make test` or `make test-slow` ran last, one after another, until one fails again.
AGAIN := --exitfirst --last-failed --last-failed-no-failures none
test-again: $(STAMP)
	$(BIN)/python -m pytest $(AGAIN)
test-slow-again: $(STAMP)
	$(BIN)/python -m pytest -m slow $(SLOW_CACHE) $(AGAIN)

# What to run while working: tests of the subpackages that need neither torch nor Ax, whose imports alone take half a minute. A test
# that would start a process or train is skipped.
FAST := $(addprefix tests/sweeps/,space text trials search/test_encoding.py search/test_grid.py \
  search/test_outcomes.py search/test_sequence.py storage/test_local_store.py storage/test_storage_urls.py) \
  $(addprefix tests/runners/,pools workers kubernetes skypilot) \
  $(addprefix tests/analysis/,statistics/test_analysis_curve.py statistics/test_analysis_efficiency.py \
  statistics/test_analysis_pareto.py statistics/test_analysis_hypervolume.py summaries/test_analysis_budget.py summaries/test_analysis_summary.py) \
  $(addprefix tests/contracts/,test_modules.py test_names.py) tests/docs/test_architecture_docs.py
test-fast: $(STAMP)
	$(BIN)/python -m pytest --fast -n 2 -k 'not eight_workers' --dist worksteal --timeout 10 $(FAST)

# The tests that compare numbers, once more as on another processor: `make test` runs them as on this one. What has
# instructions for bfloat16 is taken to have none, and the other way round; and on x86 vectors are AVX2's at most.
NUMERICS := $(addprefix tests/trainer/,optim losses quant stages models/test_subln.py training/test_train_step.py \
  training/test_equivalence.py training/test_activation_checkpointing.py devices/test_device.py \
  distributed/test_parts_of_matrices.py distributed/test_shared_training.py \
  teachers/cached/test_cached_stage3.py teachers/http/test_remote_stage3.py)
test-numerics: $(STAMP)
	@other=$$($(BIN)/python -c 'from trainer.devices.dtypes import cpu_multiplies_bfloat16 as has; print(int(not has()))') || exit; \
	export STAGESWEEP_CPU_BFLOAT16=$$other; \
	case "$$(uname -m)" in x86_64 | amd64) \
	  export ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2;; esac; \
	echo "STAGESWEEP_CPU_BFLOAT16=$$other, ATEN_CPU_CAPABILITY=$${ATEN_CPU_CAPABILITY:-as it is}"; \
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(NUMERICS)

# HYPOTHESIS_PROFILE=thorough, here or with `make test`, tries ten times as many examples of every property.
# Only files with a slow test are given: to collect all of them takes every process a minute.
SLOW_CACHE := -o cache_dir=.pytest_cache/slow
test-slow: $(STAMP) bubblewrap
	$(BIN)/python -m pytest -m slow $(SLOW_CACHE) -n $(JOBS) --dist load --maxschedchunk 1 --durations 20 \
	  $$(grep -rl --include='*.py' 'mark\.slow' tests)

# Opens the report and the dashboard in Chromium: the system's, or the one that CHROMIUM names.
test-browser: $(STAMP)
	$(BIN)/python -m pytest -m browser $$(grep -rl --include='*.py' 'mark\.browser' tests)

# A sweep through a virtual Slurm cluster in namespaces of its own: a minute. Installs Slurm where there is apt-get.
SLURM := slurmctld slurmd munged srun unshare nsenter ip
test-slurm: $(STAMP)
	@if [ "$$(id -u)" != 0 ] || ! unshare --net --mount --uts --ipc --pid --fork true; then \
	  echo "make test-slurm is left out: it needs root, and the right to make namespaces"; exit 0; fi; \
	here=yes; for each in $(SLURM); do command -v $$each > /dev/null || here=no; done; \
	if [ $$here = no ]; then \
	  if ! command -v apt-get > /dev/null || ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -qq -y --no-install-recommends slurmctld slurmd slurm-client munge iproute2 util-linux > /dev/null; }; then \
	    echo "make test-slurm is left out: Slurm is not here, and apt-get cannot install it"; exit 0; fi; fi; \
	$(BIN)/python -m pytest tests/runners/test_slurm_cluster.py -m slurm

# A folder shared by two clients of NFS, which need a kernel of their own: user-mode Linux, a process of any user.
NFS := linux.uml rpc.nfsd rpcbind mkfs.ext4 ip
test-nfs: $(STAMP)
	@here=yes; for each in $(NFS); do PATH=$$PATH:/usr/sbin:/sbin command -v $$each > /dev/null || here=no; done; \
	if [ $$here = no ]; then \
	  if [ "$$(id -u)" != 0 ] || ! command -v apt-get > /dev/null || ! { apt-get update -qq && \
	    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends user-mode-linux \
	    nfs-kernel-server nfs-common rpcbind e2fsprogs iproute2 kmod > /dev/null; }; then \
	    echo "make test-nfs is left out: user-mode Linux is not here, and apt-get cannot install it"; exit 0; fi; fi; \
	for version in 4.2 3; do tests/nfs/boot.sh $(abspath $(BIN)/python) $$version || exit 1; done

# Asks SkyPilot itself whether it takes what we render, offline; 300 MB in an environment of its own.
SKY := .venv-sky
SKY_STAMP := $(SKY)/.stagesweep-installed
test-skypilot: $(SKY_STAMP)
	HOME=$(abspath $(SKY))/home SKYPILOT_DISABLE_USAGE_COLLECTION=1 PYTHONPATH=$(CURDIR) $(SKY)/bin/python -m pytest \
	  -c /dev/null --confcutdir tests/with_skypilot -p no:cacheprovider tests/with_skypilot

$(SKY_STAMP):
	$(PYTHON) -m venv $(SKY)
	$(SKY)/bin/python -m pip install --quiet --disable-pip-version-check 'skypilot>=0.14,<0.15' 'pytest>=8.3'
	@mkdir -p $(SKY)/home && touch $@

setup-xla: $(STAMP) $(XLA_STAMP)

# Only what is XLA's own, which needs nothing of $(VENV) yet: .ci/run makes both at the same time.
install-xla: $(XLA_STAMP)

# torch_xla on its CPU device: all of a TPU run but its speed.
test-xla: $(STAMP) $(XLA_STAMP)
	PJRT_DEVICE=CPU $(XLA_VENV)/bin/python -m pytest -m xla -n 2 --dist worksteal --timeout 600 tests/trainer/xla

# Its torch and what goes with that, 7 GB (the wheels of torch 2.9 bring CUDA's libraries and need them to be loaded);
# the rest, and this checkout, are seen through a .pth file, which is written last: pip would take what
# `make setup` is still installing for complete. Few of its files are ever imported: they are compiled when
# they are. A copy by links is kept for the next checkout of this machine, under a digest of what was installed.
XLA_KEPT := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/stagesweep/venv-xla
XLA_WANTS := import sys, tomllib; \
  extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
  print(sys.version, *(each for name in ("xla", "flash", "test") for each in extras[name]), sep="\n")
XLA_SEES := import os, sys, sysconfig; base = os.path.abspath(sys.argv[1]); \
  print(sysconfig.get_path("purelib", "venv", {"base": base, "platbase": base}), os.getcwd(), sep="\n")
$(XLA_STAMP): pyproject.toml
	rm -rf $(XLA_VENV)
	@set -e; wants=$$($(PYTHON) -c '$(XLA_WANTS)'); \
	kept=$(XLA_KEPT)/$$(echo "$$wants" | cksum | tr ' ' -); \
	if [ -d "$$kept" ]; then echo "XLA's environment is a copy of $$kept"; \
	  cp -al "$$kept" $(XLA_VENV) 2> /dev/null || { rm -rf $(XLA_VENV); cp -a "$$kept" $(XLA_VENV); }; \
	else $(PYTHON) -m venv $(XLA_VENV); fi; \
	pth=$$($(XLA_VENV)/bin/python -c 'import site; print(site.getsitepackages()[0])')/stagesweep.pth; rm -f "$$pth"; \
	if [ ! -d "$$kept" ]; then \
	  echo "$$wants" | tail -n +2 > $(XLA_VENV)/wants; \
	  $(XLA_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -r $(XLA_VENV)/wants; \
	  rm -rf $(XLA_KEPT); mkdir -p $(XLA_KEPT); \
	  { cp -al $(XLA_VENV) "$$kept.part" 2> /dev/null && mv -T "$$kept.part" "$$kept"; } || rm -rf $(XLA_KEPT); \
	fi; \
	$(PYTHON) -c '$(XLA_SEES)' $(VENV) > "$$pth"
	@touch $@

# A fresh install, as it will be and as it may be: the newest versions that pyproject.toml allows, and the oldest of what
# it names (pip has no such resolution; uv has). Torch stays what it is in $(VENV): another one is gigabytes, and
# the oldest is seen by test-xla. Each run looks again what there is. What is asked of them: the seams, where
# libraries are used in ways that their releases may change, and the command line without any extra.
UV := .venv-uv
UV_STAMP := $(UV)/.stagesweep-installed
UV_INSTALL = $(UV)/bin/uv pip install --quiet $(addprefix --find-links ,$(PIP_FIND_LINKS)) --constraint $(UV)/torch.txt
SEAMS := \
  tests/contracts/test_store_contract.py tests/contracts/test_bulk_contract.py tests/contracts/test_library_names.py \
  tests/sweeps/storage/gcs/test_gcs_store.py tests/sweeps/storage/run_files/test_run_files.py \
  tests/sweeps/search/optimizer/test_optimizer.py tests/sweeps/search/optimizer/test_optimizer_outcomes.py tests/sweeps/export/test_ax_export.py \
  tests/sweeps/export/test_insight.py tests/sweeps/worker/test_early_stopping.py \
  tests/sweeps/export/test_optuna_journal.py tests/sweeps/export/test_wandb_table.py \
  tests/sweeps/hydra_app/test_hydra_params.py tests/sweeps/hydra_app/test_hydra_plugin.py \
  tests/sweeps/hydra_app/test_hydra_callback.py \
  tests/sweeps/upkeep/test_tables.py \
  tests/trainer/config/test_compose.py tests/trainer/devices/test_attention.py tests/trainer/models/test_student_folder.py \
  tests/trainer/models/test_causal_lm.py \
  tests/trainer/training/test_activation_checkpointing.py tests/trainer/optim/test_attention_logits.py \
  tests/trainer/optim/test_adamw_8bit.py tests/trainer/preflight/test_memory.py \
  tests/trainer/export/test_bitnet_layer.py tests/trainer/export/test_export_packing.py \
  tests/trainer/checkpoint/test_checkpoint_files.py \
  tests/trainer/telemetry/test_telemetry_wandb.py tests/trainer/telemetry/test_telemetry_tensorboard.py \
  tests/trainer/data/test_data_formats.py tests/trainer/data/test_data_hub.py tests/trainer/quant/test_quant_fp8.py \
  tests/runners/test_slurm.py tests/runners/tpu_vm/test_tpu_vm_client.py tests/runners/kubernetes \
  tests/analysis/test_analysis_table.py tests/analysis/report/test_analysis_figures.py

test-newest: $(UV_STAMP)
	$(PYTHON) -m venv --clear --without-pip .venv-newest
	$(UV_INSTALL) --python .venv-newest/bin/python .
	cd $(UV) && for each in sweep "sweep quickstart" "python -m trainer"; do \
	  ../.venv-newest/bin/$$each --help > /dev/null || exit 1; done
	cd $(UV) && ../.venv-newest/bin/python -c 'import sweeps, trainer, runners, analysis'
	$(UV_INSTALL) --python .venv-newest/bin/python -e ".[dev]"
	.venv-newest/bin/python -m pytest -n $(JOBS) --dist worksteal --timeout 300 $(SEAMS)

test-oldest: $(UV_STAMP)
	$(PYTHON) -m venv --clear --without-pip .venv-oldest
	$(UV_INSTALL) --python .venv-oldest/bin/python --resolution lowest-direct -e ".[dev]"
	.venv-oldest/bin/python -m pytest -n $(JOBS) --dist worksteal --timeout 300 $(SEAMS)

# The commit's tests with the Python of another Debian, 3.13 of trixie or 3.14 of sid, in a system of its own in .venv-SUITE,
# 8 GB; as root.
SUITE ?= trixie
test-debian:
	command -v debootstrap > /dev/null || apt-get install -qq -y debootstrap > /dev/null
	[ -x .venv-$(SUITE)/usr/bin/python3 ] || debootstrap --variant=minbase \
	  --include=python3-venv,make,git,g++,ca-certificates,bubblewrap $(SUITE) .venv-$(SUITE)
	rm -rf .venv-$(SUITE)/root/stagesweep
	git clone --quiet . .venv-$(SUITE)/root/stagesweep
	cp /etc/resolv.conf .venv-$(SUITE)/etc/
	unshare --mount sh -ec 'mount -t proc proc "$$0/proc"; mount --rbind /dev "$$0/dev"; \
	  mount --bind /etc/ssl/certs "$$0/etc/ssl/certs"; exec chroot "$$0" make -C /root/stagesweep test JOBS=$(JOBS)' .venv-$(SUITE)

$(UV_STAMP): $(STAMP)
	$(PYTHON) -m venv $(UV)
	$(UV)/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9'
	$(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > $(UV)/torch.txt
	@touch $@

# What is uploaded: wheel and sdist are built and checked, the wheel is installed into an empty environment with what it
# requires, both commands start, and the quickstart runs: five trials with a hardly trained teacher, as the whole takes
# three minutes of CPU. Then each extra: those of a few megabytes are installed and imported, of the others (torch_xla,
# Ray, SkyPilot, Jax, lm-eval) it is asked whether they can be resolved; `make test-xla`, `test-ray` and
# `test-skypilot` install theirs.
RELEASE := .venv-release
SMALL_EXTRAS := aws:boto3 export:accelerate gguf:gguf lora:peft tensorboard:tensorboardX slurm:submitit kubernetes:kubernetes_validate \
  tpu-vm:google.cloud.tpu_v2 notebooks:papermill hub:datasets bnb:bitsandbytes
LARGE_EXTRAS := xla tpu flash ray skypilot eval
test-release: SHELL := bash
test-release: $(UV_STAMP)
	$(UV)/bin/python -m pip install --quiet --disable-pip-version-check 'build>=1.2' 'twine>=6'
	rm -rf dist $(RELEASE) && $(UV)/bin/python -m build --outdir dist . > /dev/null
	$(UV)/bin/python -m twine check --strict dist/*
	$(PYTHON) -m venv --without-pip $(RELEASE)
	$(UV_INSTALL) --python $(RELEASE)/bin/python dist/*.whl
	@set -e; mkdir $(RELEASE)/empty && cd $(RELEASE)/empty; export STAGESWEEP_CACHE=$$PWD/cache; \
	../bin/sweep --version && ../bin/stagesweep --version; \
	../bin/python -I -c 'import sweeps; assert "$(RELEASE)/lib" in sweeps.__file__, sweeps.__file__'; \
	space=$$(echo ../lib/python*/site-packages/search_spaces/quickstart.yaml); \
	sed -i 's/teacher.max_steps=200/teacher.max_steps=10/; s/sobol: 6/sobol: 3/; s/run_cap: 14 /run_cap: 5 /' $$space; \
	test "$$(grep -Ec 'max_steps=10 |sobol: 3|run_cap: 5 ' $$space)" = 3; \
	../bin/stagesweep quickstart > quickstart.txt 2>&1 || { cat quickstart.txt; exit 1; }; \
	test -s report.html && ../bin/sweep best --no-surrogate
	@set -e; wheel=$$(echo dist/*.whl); \
	for each in $(SMALL_EXTRAS); do echo "the extra $${each%%:*}: installed"; \
	  $(UV_INSTALL) --python $(RELEASE)/bin/python "$$wheel[$${each%%:*}]"; \
	  $(RELEASE)/bin/python -I -W ignore -c "import $${each#*:}"; done; \
	for each in $(LARGE_EXTRAS); do echo "the extra $$each: can be resolved"; \
	  $(UV)/bin/uv pip compile --quiet --no-header $(addprefix --find-links ,$(PIP_FIND_LINKS)) --python-version 3.11 \
	    --output-file $(RELEASE)/$$each.txt - <<< "stagesweep[$$each] @ file://$$PWD/$$wheel" > /dev/null; done

# A sweep through a Ray cluster on this machine. Ray is 300 MB: it has an environment of its own, which sees this one.
RAY := .venv-ray
test-ray: $(STAMP)
	test -x $(RAY)/bin/ray || { $(PYTHON) -m venv $(RAY) && \
	  $(abspath $(BIN))/python -c 'import site; print(site.getsitepackages()[0])' \
	    > "$$($(RAY)/bin/python -c 'import site; print(site.getsitepackages()[0])')/stagesweep.pth" && \
	  $(RAY)/bin/python -m pip install --quiet --disable-pip-version-check "ray[default]>=2.40,<3"; }
	STAGESWEEP_RAY_PYTHON=$(abspath $(RAY))/bin/python $(BIN)/python -m pytest tests/runners/ray_cluster/test_ray_cluster.py -m ray

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory docs

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site of the docs, into build/site. Broken links and anchors fail.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f docs/site/mkdocs.yml

# The pictures of the README and of the docs, drawn anew from a quickstart of now: some minutes.
pictures: $(STAMP)
	@mkdir -p build
	cd build && rm -rf sweep-store && env -u SWEEP_STORAGE -u SWEEP_NAME $(abspath $(BIN))/sweep quickstart
	cd build && $(abspath $(BIN))/python ../docs/site/pictures.py sweep-store/quickstart ../docs/pictures

bench: $(STAMP)
	$(BIN)/python -m benchmarks.ask
	$(BIN)/python -m benchmarks.search
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.start
	$(BIN)/python -m benchmarks.gpu --shapes cpu --limit 300
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.report

# Speed of training steps on a GPU, in shapes of real models; eight minutes on one H200. A bare checkout with torch,
# transformers, hydra-core and pydantic needs no `make`: python -m benchmarks.gpu --out gpu.json
bench-gpu: $(STAMP)
	$(BIN)/python -m benchmarks.gpu --out bench-gpu.json $(ARGS)

# What the research notebook found, asked again: five seeds each, docs/explanation/findings.md. Goes on where it was stopped.
findings: $(STAMP)
	$(BIN)/python -m benchmarks.findings $(ARGS)

clean:
	rm -rf $(VENV) $(XLA_VENV) $(RAY) $(SKY) $(UV) .venv-newest .venv-oldest .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .venv-release dist build
