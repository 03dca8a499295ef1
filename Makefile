# Stele's targets. Each is what CI runs; `make` alone lists them.
GO      ?= go
SEEDS   ?= 600
ROUNDS  ?= 8
MINUTES ?= 3
FILES   := $(shell git ls-files '*.go' 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help build run test race lint interop differential sim chaos mutants bench fuzz clean

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

build: ## build the static binary into bin/stele
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/stele ./cmd/stele

run: build ## start a node on 127.0.0.1:9092 with its data in ./stele-data
	./bin/stele serve

test: ## unit, golden and property tests; needs Go alone
	$(GO) test -count=1 -skip '^TestFaultAtEveryOperation$$' ./...
	$(GO) test -count=1 -v -run '^TestFaultAtEveryOperation$$' ./test/sim/storage

race: ## the same under the race detector; needs a C compiler
	$(GO) test -count=1 -race ./...

lint: ## gofmt, vet and staticcheck
	@test -z "$$(gofmt -l $(FILES))" || { echo "gofmt would change:"; gofmt -l $(FILES); exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags interop,chaos,failpoints,mutants ./...
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...
	cd test/interop/goclients && $(GO) vet ./... && $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...

interop: ## other people's clients and Apache Kafka's own tools against a running node
	test/interop/run.sh

differential: ## the same requests to Apache Kafka and to a node, answers compared; TURN=n as CI does
	test/differential/run.sh

sim: ## the simulators, and several brokers; SEEDS=n, ROUNDS=n for more
	SEEDS=$(SEEDS) $(GO) test ./test/sim -count=1
	ROUNDS=$(ROUNDS) $(GO) test ./test/replication -count=1 -timeout 60m
	SEEDS=$(SEEDS) $(GO) test ./test/sim/storage -count=1 -v -run 'TestStorageSim|TestPowerLoss'
	SEEDS=$$((($(SEEDS) + 29) / 30)) $(GO) test ./test/sim/control -count=1 -timeout 3h -v -run TestControlSim
	SEEDS=$$((($(SEEDS) + 39) / 40)) $(GO) test ./test/sim/cluster -count=1 -v -run TestClusterSim -timeout 3h

chaos: ## kill -9 loops and full disks on real processes; needs root; MINUTES=n for all of it
	MINUTES=$(MINUTES) test/chaos/run.sh

mutants: ## planted bugs, each of which some test or seed must catch; TURN=n for three of them
	test/sim/mutants.sh

bench: ## ratios against Apache Kafka, side by side
	bench/run.sh

fuzz: ## every fuzz target for FUZZTIME (default 10s) each
	test/fuzz.sh

clean: ## remove what make built
	rm -rf bin
