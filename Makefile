# Targets: build demo test test-long bench lint. `make demo` installs what is missing.

GO ?= go

.PHONY: build demo test test-long bench lint

build:
	$(GO) build -trimpath -o bin/reprise ./cmd/reprise

demo:
	@scripts/need-toolchain.sh
	@$(MAKE) --no-print-directory build
	@bin/reprise demo

# GOGC: heaps are small, and collecting a quarter as often saves a fifth of the tests' own time.
test:
	@scripts/need-toolchain.sh
	GOGC=400 $(GO) test -timeout 30m ./...

# Long fuzzing, every budget of every model at larger shapes, full conformance.
test-long:
	@scripts/need-toolchain.sh
	GOGC=400 REPRISE_LONG=1 $(GO) test -timeout 6h ./...

bench: build
	@scripts/need-toolchain.sh
	bench/peers/setup.sh
	bin/reprise bench --peers

lint:
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
