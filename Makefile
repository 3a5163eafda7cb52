# SPDX-License-Identifier: Apache-2.0
#
# `make help` lists the targets; `make QUIET=` prints each command. Rules for C code are in fragments named build.mk, which
# add programs of tests to TESTED, and commands of `make test` to SUITES.

PREFIX     ?= /usr/local
DESTDIR    ?=
SYSCONFDIR ?= /etc
UNITDIR    ?= /lib/systemd/system
# zsh's directory for completions; Debian's packages have another.
ZSHDIR     ?= $(PREFIX)/share/zsh/site-functions

GO    ?= $(shell test/go.sh)
CC    ?= cc
RUNC  ?= runc
QUIET ?= @
# --strict: a test that lacks root or a package fails instead of being skipped.
TEST_FLAGS ?=
BENCH_FLAGS ?=

# 0.1.0 for a tagged commit; the VERSION file and the commit for any other; the file alone in a tarball.
VERSION ?= $(shell test/version.sh)

BIN := bin

# The same source gives the same files in any directory (test/reproducible.sh). The compiler takes the directory's name from PWD, which may
# name a link to it.
override CFLAGS += -ffile-prefix-map=$(CURDIR)=.
export PWD := $(CURDIR)

C_WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wvla -Werror
C_FLAGS    := -std=c11 -O2 -g $(C_WARNINGS) -Iinterceptor

# NVIDIA marks functions of NVML as deprecated that go-nvml still wraps.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

GO_FLAGS := -trimpath -buildvcs=false
GO_LINK  := -X github.com/gpuslice/gpuslice/api.Version=$(VERSION)

# The files of `make install`, of `make demo`, and of tests alone.
BUILD  := $(addprefix $(BIN)/,gpuslice gpusliced gpuslice-hook gpuslice-runtime gpuslice-leased gpuslice-broker containerd-shim-gpuslice-v1 libgpuslice.so)
DEMO   := $(addprefix $(BIN)/,gpuslice gpusliced gpuslice-hook gpuslice-runtime libgpuslice.so fakecuda/libcuda.so.1 fakecuda/libnvidia-ml.so.1 demo/cuda_hog)
TESTED := $(filter-out $(BUILD),$(DEMO))
SUITES := test/model.sh kubernetes/test.sh
# The argument of deps.sh.
DEPS   := $(if $(filter test test-% bench%,$(MAKECMDGOALS)),test,$(if $(filter demo,$(MAKECMDGOALS)),demo,build))

.PHONY: help
help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

include $(wildcard interceptor/build.mk test/*/build.mk)

# --- build ---------------------------------------------------------------------------------

.PHONY: build
build: $(BUILD) .cache/symbols share ## Compile into bin/ what is installed

.PHONY: test-programs
test-programs: build $(TESTED) ## Compile what the tests run, too

.PHONY: card-programs
card-programs: test-programs vmm-tests session-tests ## Compile all that test/gpu/all.sh runs

.PHONY: deps
deps: ## Install the Debian or Ubuntu packages that build, test and demo need
	$(QUIET)test/deps.sh test
	@mkdir -p .cache && touch .cache/deps-build .cache/deps-demo .cache/deps-test

# Checked once, before anything is compiled; `make deps` checks again.
.cache/deps-%: test/deps.sh
	$(QUIET)test/deps.sh $*
	@mkdir -p .cache && touch $@
$(BUILD) $(TESTED) $(COMPILED_FIRST) $(BIN)/gpuslice-dra $(BIN)/kubelet: | .cache/deps-$(DEPS)

# Changes only with the version, so a new commit only relinks.
.cache/version: FORCE
	@mkdir -p .cache
	@echo '$(VERSION)' | cmp -s - $@ || echo '$(VERSION)' >$@
.PHONY: FORCE
FORCE:

GO_SOURCES := $(shell find api cmd daemon enforcer hook hostmem lease shim vmm \( -name '*.go' -o -name '*.[ch]' \) ! -name '*_test.go' 2>/dev/null)
C_HEADERS  := $(wildcard interceptor/*.h interceptor/*.def)

# programs NAMES,CGO_ENABLED,FLAGS: one command for programs with the same flags, so that Go loads their packages once.
define programs
$(addprefix $(BIN)/,$(1)) &: $(GO_SOURCES) go.mod go.sum $(C_HEADERS) interceptor/ledger.c .cache/version
	@mkdir -p $(BIN)
	$$(QUIET)CGO_ENABLED=$(2) test/progress.sh '$(addprefix $(BIN)/,$(1))' $$(GO) build -v $$(GO_FLAGS) $(3) -o $(BIN)/ $(addprefix ./cmd/,$(1))
endef

# The enforcer shares the ledger's code with the interceptor through cgo.
$(eval $(call programs,gpuslice gpusliced,1,-ldflags '$$(GO_LINK)'))
$(eval $(call programs,gpuslice-leased gpuslice-broker,1,-ldflags '$$(GO_LINK)'))

# The hook, the runtime and the shim run as root in an environment that others may control: no dynamic loader, no libc. A shim does not use
# gRPC; without it containerd's messages load in two thirds of the time.
$(eval $(call programs,gpuslice-hook gpuslice-runtime,0,-tags no_grpc -ldflags '-s -w $$(GO_LINK)'))
$(eval $(call programs,containerd-shim-gpuslice-v1,0,-tags no_grpc -ldflags '-s -w $$(GO_LINK)'))

# A module of its own, with dependencies that the programs above lack. Without gRPC's unused traces: they bring text/template, which has the
# linker keep every method of every type. The program would be half as large again, and need a quarter more memory.
$(BIN)/gpuslice-dra: $(GO_SOURCES) $(shell find kubernetes -name '*.go' ! -name '*_test.go') kubernetes/go.mod kubernetes/go.sum .cache/version
	@mkdir -p $(@D)
	@echo "  $@"
	$(QUIET)CGO_ENABLED=0 $(GO) -C kubernetes build $(GO_FLAGS) -tags grpcnotrace -ldflags '-s -w $(GO_LINK)' -o ../$@ ./cmd/gpuslice-dra

# Simulates the kubelet for test/gpu/kubernetes.py, where there is no cluster.
$(BIN)/kubelet: $(wildcard kubernetes/test/kubelet/*.go kubernetes/config/*.go kubernetes/inventory/*.go) kubernetes/go.mod kubernetes/go.sum
	@mkdir -p $(@D)
	@echo "  $@"
	$(QUIET)CGO_ENABLED=0 $(GO) -C kubernetes build $(GO_FLAGS) -ldflags '-s -w' -o ../$@ ./test/kubelet

.PHONY: kubernetes-card
kubernetes-card: kubernetes $(BIN)/kubelet

.PHONY: kubernetes
kubernetes: $(BIN)/gpuslice-dra ## Compile the driver for Kubernetes

$(BIN)/demo/cuda_hog: test/demo/cuda_hog.c $(C_HEADERS)
	@mkdir -p $(@D)
	@echo "  $@"
	$(QUIET)$(CC) $(C_FLAGS) $(CFLAGS) $(LDFLAGS) -o $@ $< -ldl

# The library may need no symbol newer than glibc 2.17, and export only the hooked names.
.cache/symbols: $(BIN)/libgpuslice.so interceptor/exports.txt test/check-symbols.sh
	$(QUIET)test/check-symbols.sh $(BIN)/libgpuslice.so interceptor/exports.txt
	@touch $@

# --- run -----------------------------------------------------------------------------------

.PHONY: test
test: test-programs ## Run every quick test (the longer ones: .ci/run)
	$(QUIET)GO='$(GO)' test/run.sh $(TEST_FLAGS) $(SUITES)

.PHONY: test-engines
test-engines: test-programs ## Try Docker, containerd, CRI, nerdctl, Podman, runc and crun (ENGINES_FLAGS='-run TestEngines/docker')
	$(QUIET)GO='$(GO)' test/engines/run.sh $(ENGINES_FLAGS)

.PHONY: chart
chart: ## Write the Helm chart's templates again from the kustomizations (KUSTOMIZE='kubectl kustomize')
	$(QUIET)kubernetes/deploy/chart.sh

.PHONY: test-kubernetes
test-kubernetes: test-programs kubernetes ## Try the driver for Kubernetes in a real cluster (KUBERNETES_FLAGS='-run TestClaims/one')
	$(QUIET)GO='$(GO)' kubernetes/test/run.sh $(KUBERNETES_FLAGS)

.PHONY: scale
scale: ## Try the driver with simulated nodes in a real control plane (SCALE_FLAGS='-nodes 100 -claims 2000')
	$(QUIET)cd kubernetes && CGO_ENABLED=0 GOFLAGS=-trimpath $(GO) test -tags scale -count=1 -timeout 1h -buildvcs=false -v -run AtScale ./test/scale -args $(SCALE_FLAGS)

.PHONY: test-metrics
test-metrics: test-programs ## Try the alert rules and the dashboard with a real Prometheus
	$(QUIET)GO='$(GO)' test/prometheus/run.sh $(METRICS_FLAGS)

.PHONY: test-faults
test-faults: test-programs ## Inject faults for five minutes and compare with a model (GPUSLICE_FAULTS=1h; FAULTS_FLAGS='-seed 7')
	$(QUIET)GO='$(GO)' test/faults/run.sh $(FAULTS_FLAGS)

.PHONY: test-hostile
test-hostile: test-programs ## Have a container and users do harm for a minute, and measure what others notice (GPUSLICE_HOSTILE=10m)
	$(QUIET)GO='$(GO)' test/hostile/run.sh $(HOSTILE_FLAGS)

.PHONY: test-sanitizers
test-sanitizers: test-programs ## Race the interceptor under the sanitizers of threads, addresses and undefined behaviour
	$(QUIET)test/sanitizers/run.sh

.PHONY: demo
demo: $(DEMO) ## Run a container with 4 GiB of VRAM and check each promise
	$(QUIET)RUNC='$(RUNC)' test/demo/demo.sh

.PHONY: playground
playground: $(DEMO) ## Run gpusliced with two simulated cards and four slices, to try commands on, until Ctrl-C
	$(QUIET)test/playground/playground.sh

.PHONY: bench
bench: test-programs ## Measure what the interceptor costs (BENCH_FLAGS=--quick: in a minute)
	$(QUIET)test/bench/bench.py $(BENCH_FLAGS)

.PHONY: lint
lint: ## Check formatting and run the linters
	$(QUIET)GO='$(GO)' test/lint.sh

.PHONY: vulnerabilities
vulnerabilities: ## Look for known vulnerabilities that the programs reach
	$(QUIET)GO='$(GO)' test/vulnerabilities.sh

.PHONY: versions
versions: ## Renew the versions of Go and of the tools in go.mod and test/versions
	$(QUIET)GO='$(GO)' test/versions.sh

.PHONY: nightly
nightly: ## Run the long tests, for hours, and record the result in docs/evidence/nightly.md
	$(QUIET).ci/nightly

.PHONY: generate
generate: .cache/table ## Write again what is generated from other files
	$(QUIET)$(GO) generate ./...
	$(QUIET).cache/table exports >interceptor/exports.txt
	$(QUIET).cache/table coverage >docs/evidence/coverage.md

.PHONY: docs
docs: ## Write the site of the documents into bin/site/ and check its links (needs hugo)
	$(QUIET)command -v hugo >/dev/null || { echo "make docs: hugo is not installed: sudo apt-get install hugo" >&2; exit 1; }
	$(QUIET)rm -rf bin/site bin/godoc
	$(QUIET)mkdir -p bin/godoc
	$(QUIET)for package in api api/client lease vmm; do \
		{ printf '# Go package %s\n\n```go\n' $$package && $(GO) doc -all ./$$package && printf '```\n'; } >bin/godoc/go-$${package##*/}.md || exit; \
	done
	$(QUIET)HUGO_PARAMS_VERSION='$(VERSION)' hugo --source docs/site --destination '$(CURDIR)/bin/site' --quiet
	$(QUIET)$(GO) run ./test/docs/deadlinks bin/site

# --- install -------------------------------------------------------------------------------

INSTALL := BIN='$(BIN)' DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' SYSCONFDIR='$(SYSCONFDIR)' UNITDIR='$(UNITDIR)' \
           ZSHDIR='$(ZSHDIR)' VERSION='$(VERSION)'
# The commit's date, so the same source gives the same page; in a tarball the file's.
DATE    := $(shell git log -1 --format=%cs 2>/dev/null || date -r VERSION +%F)
SHARE   := $(addprefix bin/share/,gpuslice.1 gpuslice.toml.5 gpuslice.bash gpuslice.zsh gpuslice.fish)

.PHONY: share
share: $(SHARE) ## Write the manual pages and the shells' completions into bin/share/

bin/share/gpuslice.1: bin/gpuslice
	@mkdir -p $(@D)
	$(QUIET)bin/gpuslice man --date $(DATE) >$@.new && mv -f $@.new $@

bin/share/gpuslice.toml.5: configs/config.toml docs/man/config.awk .cache/version
	@mkdir -p $(@D)
	$(QUIET)awk -v date="$$(LC_ALL=C date -d $(DATE) '+%B %-d, %Y')" -f docs/man/config.awk $< >$@.new && mv -f $@.new $@

bin/share/gpuslice.bash bin/share/gpuslice.zsh bin/share/gpuslice.fish: bin/share/gpuslice.%: bin/gpuslice
	@mkdir -p $(@D)
	$(QUIET)bin/gpuslice completion $* >$@.new && mv -f $@.new $@

.PHONY: install
install: build ## Install into PREFIX (/usr/local), below DESTDIR
	$(QUIET)$(INSTALL) configs/install.sh install

.PHONY: uninstall
uninstall: ## Remove what install put there, unless it is in use (FORCE=1); configuration and state stay
	$(QUIET)$(INSTALL) FORCE='$(FORCE)' configs/install.sh uninstall

# For another machine: PACKAGES_ARCH has a build directory of its own.
PACKAGES_ARCH ?= $(shell $(GO) env GOARCH)
.PHONY: packages
packages: build ## Make a .deb and a .rpm in bin/packages/ (PACKAGES_ARCH='amd64 arm64')
	$(QUIET)GO='$(GO)' VERSION='$(VERSION)' DATE='$(DATE)' configs/packages/build.sh $(PACKAGES_ARCH)

# Pure Python: the same file for all machines.
.PHONY: wheel
wheel: ## Make the wheel of the client of leases in Python in bin/python/
	$(QUIET)command -v python3 >/dev/null || { echo "make wheel: python3 is not installed: sudo apt-get install python3" >&2; exit 1; }
	$(QUIET)rm -rf $(BIN)/python
	$(QUIET)python3 -B lease/python/make_wheel.py $(BIN)/python '$(VERSION)'

# It lists the parts that this machine cannot make, and fails if RELEASE names one of them.
.PHONY: release
release: build $(if $(findstring dra,$(or $(RELEASE),dra)),kubernetes) ## Make a release in bin/release/ (RELEASE='packages-amd64 chart' for these parts; OUT=DIR)
	$(QUIET)GO='$(GO)' VERSION='$(VERSION)' DATE='$(DATE)' configs/release/build.sh $(RELEASE)

.PHONY: clean
clean: ## Remove what build made
	rm -rf $(BIN)
	$(QUIET)[ ! -d .cache ] || find .cache -mindepth 1 -maxdepth 1 ! -name go ! -name tools -exec rm -rf {} +
